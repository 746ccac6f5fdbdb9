# The machines: one master, any number of workers, and what they are made of.

locals {
  # Whatever is made carries a mark from the first moment, so that it is found even where the state does not have it
  # (leftovers.py): as its description, its metadata, or, where there is neither, as its name. Others in the project may
  # have given their cluster the same name, so the mark ends with what only this one has. It comes out of the checks, so
  # that nothing is made before them. Tags come a moment later, and are for people and for counting.
  name_mark = "ronde-cluster-${var.cluster_name}"
  own_mark  = "${local.name_mark}-${terraform_data.identity.id}"
  mark      = terraform_data.checks.output
  metadata  = { ronde_cluster = var.cluster_name, ronde_mark = local.mark }
  tags      = [local.name_mark]

  worker = {
    count             = var.horovod_worker_node.count
    flavor_name       = coalesce(var.horovod_worker_node.flavor_name, var.horovod_master_node.flavor_name)
    boot_volume_size  = coalesce(var.horovod_worker_node.boot_volume_size, var.horovod_master_node.boot_volume_size)
    availability_zone = var.horovod_worker_node.availability_zone != null ? var.horovod_worker_node.availability_zone : var.horovod_master_node.availability_zone
    own_image         = var.horovod_worker_node.image_name != null || var.horovod_worker_node.image_id != null
  }

  # A public key is a text, or the name of a file; without a word it is the user's own.
  usual_keys     = [for name in ["id_ed25519", "id_ecdsa", "id_rsa"] : "~/.ssh/${name}.pub" if fileexists(pathexpand("~/.ssh/${name}.pub"))]
  upload_key     = var.horovod_master_node.key_pair == null
  key_source     = var.horovod_master_node.public_key != null ? var.horovod_master_node.public_key : try(local.usual_keys[0], "")
  key_text       = can(regex("^(ssh|ecdsa|sk)-", local.key_source)) ? local.key_source : try(file(pathexpand(local.key_source)), "")
  key_is_good    = can(regex("^(ssh|ecdsa|sk)-[a-z0-9@.-]+ [A-Za-z0-9+/=]+", local.key_text))
  key_is_private = strcontains("${local.key_source}${local.key_text}", "PRIVATE KEY")
  key_name       = local.upload_key ? one(openstack_compute_keypair_v2.cluster[*].name) : var.horovod_master_node.key_pair
}

# Its id tells this cluster from all others. It is in the state before anything is in the cloud, and also in a file that
# stays when the state is emptied, so that what an interrupted run has lost is found even then.
resource "terraform_data" "identity" {
  provisioner "local-exec" {
    command     = "mkdir -p -m 700 .ronde && echo '${self.id}' >>.ronde/identities"
    working_dir = path.module
  }
}

# A pair that the cloud would make itself has its private half in the state; so only a public half is ever given.
resource "openstack_compute_keypair_v2" "cluster" {
  count = local.upload_key ? 1 : 0
  name  = local.mark
  # Nothing but a public key gets even into a plan, which is shown.
  public_key = local.key_is_good ? trimspace(local.key_text) : "refused"
}

resource "openstack_compute_servergroup_v2" "cluster" {
  count    = var.server_group == "" ? 0 : 1
  name     = local.mark
  policies = [var.server_group]

  lifecycle {
    # Another name would be another group, and that means other machines.
    ignore_changes = [name]
  }
}

resource "openstack_networking_port_v2" "master" {
  name               = "${var.cluster_name}-master"
  network_id         = local.network_id
  description        = local.mark
  admin_state_up     = true
  security_group_ids = [openstack_networking_secgroup_v2.cluster.id, openstack_networking_secgroup_v2.access.id]
  tags               = concat(local.tags, ["ronde-master"])
  # A port gets an address only where there is a subnet.
  depends_on = [openstack_networking_subnet_v2.cluster]
}

resource "openstack_networking_port_v2" "worker" {
  count              = local.worker.count
  name               = "${var.cluster_name}-worker-${count.index + 1}"
  network_id         = local.network_id
  description        = local.mark
  admin_state_up     = true
  security_group_ids = [openstack_networking_secgroup_v2.cluster.id]
  tags               = concat(local.tags, ["ronde-worker"])
  depends_on         = [openstack_networking_subnet_v2.cluster]
}

resource "openstack_compute_instance_v2" "master" {
  name              = "${var.cluster_name}-master"
  flavor_id         = data.openstack_compute_flavor_v2.master.id
  image_id          = var.horovod_master_node.boot_volume_size > 0 ? null : local.master_image
  key_pair          = local.key_name
  availability_zone = var.horovod_master_node.availability_zone
  metadata          = local.metadata

  network {
    port = openstack_networking_port_v2.master.id
  }

  dynamic "block_device" {
    for_each = var.horovod_master_node.boot_volume_size > 0 ? [var.horovod_master_node.boot_volume_size] : []
    content {
      uuid                  = local.master_image
      source_type           = "image"
      destination_type      = "volume"
      volume_size           = block_device.value
      delete_on_termination = true
    }
  }

  dynamic "scheduler_hints" {
    for_each = openstack_compute_servergroup_v2.cluster[*].id
    content {
      group = scheduler_hints.value
    }
  }

  lifecycle {
    # A newer image or another key is for new machines; those that are there keep their disks.
    ignore_changes = [image_id, image_name, block_device, key_pair]
  }

  depends_on = [openstack_networking_router_interface_v2.cluster]
}

resource "openstack_compute_instance_v2" "worker" {
  count             = local.worker.count
  name              = "${var.cluster_name}-worker-${count.index + 1}"
  flavor_id         = local.worker_flavor.id
  image_id          = local.worker.boot_volume_size > 0 ? null : local.worker_image
  key_pair          = local.key_name
  availability_zone = local.worker.availability_zone
  metadata          = local.metadata

  network {
    port = openstack_networking_port_v2.worker[count.index].id
  }

  dynamic "block_device" {
    for_each = local.worker.boot_volume_size > 0 ? [local.worker.boot_volume_size] : []
    content {
      uuid                  = local.worker_image
      source_type           = "image"
      destination_type      = "volume"
      volume_size           = block_device.value
      delete_on_termination = true
    }
  }

  dynamic "scheduler_hints" {
    for_each = openstack_compute_servergroup_v2.cluster[*].id
    content {
      group = scheduler_hints.value
    }
  }

  lifecycle {
    ignore_changes = [image_id, image_name, block_device, key_pair]
  }

  depends_on = [openstack_networking_router_interface_v2.cluster]
}

# Where the shared folder lies, if it is not to lie on the master's own disk.
resource "openstack_blockstorage_volume_v3" "share" {
  count       = var.horovod_master_node.volume_size > 0 ? 1 : 0
  name        = "${var.cluster_name}-share"
  size        = var.horovod_master_node.volume_size
  volume_type = var.horovod_master_node.volume_type
  metadata    = local.metadata
  # A larger volume_size is for a volume that is in use; the role `share` then lets the file system grow.
  enable_online_resize = true
}

resource "openstack_compute_volume_attach_v2" "share" {
  count       = var.horovod_master_node.volume_size > 0 ? 1 : 0
  instance_id = openstack_compute_instance_v2.master.id
  volume_id   = openstack_blockstorage_volume_v3.share[0].id
}
