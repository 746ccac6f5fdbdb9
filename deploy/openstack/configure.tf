# From machines to a cluster: how to reach them, waiting until they are ready, and Ansible.

locals {
  folder        = abspath(path.module)
  image_context = fileexists("${path.module}/image/deploy/images/cpu.Dockerfile") ? "${local.folder}/image" : abspath("${path.module}/../..")
  # What the image is built from, as ansible/roles/image/files/pack.py has it; of several wheels, though, that takes one.
  image_files = setunion([
    for pattern in ["deploy/images/**", "examples/*.{py,ipynb}", "dist/ronde-*.whl"] : fileset(local.image_context, pattern)
  ]...)
  image_digest = sha256(join("", [for file in sort(local.image_files) : "${file} ${filesha256("${local.image_context}/${file}")}"]))
  # By the flavours alone, so that the image is the same whether there are workers or not.
  image_device = local.master_gpus + local.worker_gpus > 0 ? "gpu" : "cpu"
  # An archive is known to Ansible by its whole path.
  image       = try(fileexists(pathexpand(var.image)), false) ? abspath(pathexpand(var.image)) : var.image
  master_name = "${var.cluster_name}-master"
  # Networks may have addresses of both kinds; the cluster speaks IPv4.
  private = {
    for port in concat([openstack_networking_port_v2.master], openstack_networking_port_v2.worker) :
    port.name => concat([for address in port.all_fixed_ips : address if !strcontains(address, ":")], port.all_fixed_ips)[0]
  }
  master_private = local.private[local.master_name]
  # Known only once the address is the machine's.
  master_address = var.horovod_master_node.public_ip == "none" ? local.master_private : one(openstack_networking_floatingip_associate_v2.master[*].floating_ip)

  machines = merge(
    {
      (local.master_name) = { id = openstack_compute_instance_v2.master.id, address = local.master_address, private = local.master_private, gpus = local.master_gpus, number = 1 }
    },
    {
      for index, worker in openstack_compute_instance_v2.worker : worker.name => {
        id = worker.id, address = local.private[worker.name], private = local.private[worker.name], gpus = local.worker_gpus, number = index + 2
      }
    },
  )
  names = concat([local.master_name], [for index in range(local.worker.count) : "${var.cluster_name}-worker-${index + 1}"])

  # Workers have no address outside: the way to them is through the master. A machine's keys are known by its id in the
  # cloud, since its address may have been another's before. What the user has set for ssh comes after.
  ssh_config = <<-EOT
    %{~for name in local.names}
    Host ${name}
      HostName ${local.machines[name].address}
      HostKeyAlias ${local.machines[name].id}
      %{~if name == local.master_name}
      ForwardAgent yes
      %{~else}
      ProxyJump ${local.master_name}
      %{~endif}

    %{~endfor}
    Host ${var.cluster_name}-*
      User ${var.ssh_user}
      UserKnownHostsFile "${local.folder}/known_hosts"
      StrictHostKeyChecking accept-new

    Host *
      Include ~/.ssh/config
  EOT

  host_variables = {
    for name in local.names : name => {
      # The name that ssh_config knows; it would not find a machine there by its address.
      ansible_host    = name
      private_address = local.machines[name].private
      gpus            = local.machines[name].gpus
      number          = local.machines[name].number
    }
  }
  inventory = yamlencode({
    all = {
      vars = {
        cluster_name            = var.cluster_name
        ansible_user            = var.ssh_user
        ansible_ssh_common_args = "-F '${local.folder}/ssh_config'"
        public_address          = local.master_address
        share_device            = try(openstack_compute_volume_attach_v2.share[0].device, "")
        share_volume            = try(openstack_compute_volume_attach_v2.share[0].volume_id, "")
        image                   = local.image
        image_context           = local.image_context
        framework               = var.framework
        image_device            = local.image_device
      }
      children = {
        master  = { hosts = { (local.master_name) = local.host_variables[local.master_name] } }
        workers = { hosts = { for name, variables in local.host_variables : name => variables if name != local.master_name } }
      }
    }
  })
}

# What is written into this folder below goes with the cluster. The folder may have been moved since.
resource "terraform_data" "files" {
  provisioner "local-exec" {
    when        = destroy
    command     = "rm -f inventory.yaml ssh_config known_hosts"
    working_dir = path.module
  }
}

resource "terraform_data" "inventory" {
  triggers_replace = sha256("${local.inventory}${local.ssh_config}")

  provisioner "local-exec" {
    command     = "printf '%s' \"$INVENTORY\" >inventory.yaml && printf '%s' \"$SSH_CONFIG\" >ssh_config"
    working_dir = path.module
    environment = {
      INVENTORY  = local.inventory
      SSH_CONFIG = local.ssh_config
    }
  }

  depends_on = [terraform_data.files]
}

resource "terraform_data" "ready" {
  for_each         = toset(local.names)
  triggers_replace = local.machines[each.key].id

  provisioner "local-exec" {
    command     = "sh ./await-machine '${each.key}' '${local.machines[each.key].address}' '${var.ready_timeout}'"
    working_dir = path.module
  }

  # The rules are what lets us in; without them nothing is worth waiting for.
  depends_on = [terraform_data.inventory, openstack_networking_secgroup_rule_v2.access, openstack_networking_secgroup_rule_v2.cluster]
}

# All machines every time, since that is how the roles are: what is as it should be is left alone. So a new worker
# changes only itself.
resource "terraform_data" "configure" {
  count = var.configure ? 1 : 0
  triggers_replace = {
    inventory = terraform_data.inventory.id
    machines  = [for name in local.names : terraform_data.ready[name].id]
    volume    = one(openstack_blockstorage_volume_v3.share[*].size)
    roles     = sha256(join("", [for file in sort(fileset(path.module, "ansible/**")) : filesha256("${path.module}/${file}")]))
    image     = var.image == "" ? local.image_digest : null
  }

  provisioner "local-exec" {
    command     = <<-EOT
      command -v "$PLAYBOOK" >/dev/null || {
        echo "error: $PLAYBOOK is not installed: pip install -r $PWD/ansible/requirements.txt, then terraform apply again" >&2
        exit 1
      }
      exec "$PLAYBOOK" -i inventory.yaml ansible/site.yml
    EOT
    working_dir = path.module
    environment = {
      PLAYBOOK       = var.ansible_playbook
      ANSIBLE_CONFIG = "${local.folder}/ansible/ansible.cfg"
    }
  }
}
