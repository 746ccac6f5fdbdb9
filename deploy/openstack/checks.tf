# What the cloud has to say before anything is made: images, flavours, keys, addresses, and what the project may use.
#
# A plan fails where one of these does, so nothing is left half made. The provider's own words for what it does not find
# do not name it; Terraform shows the line with them, and the fix stands there.

# Asked first, and by all others waited for, so that a wrong password is said once.
data "openstack_identity_auth_scope_v3" "project" { # who you are: auth_data, openstack_provider, clouds.yaml or OS_* variables
  name = var.cluster_name

  lifecycle {
    precondition {
      condition     = !anytrue([for value in values(var.auth_data) : startswith(coalesce(value, "-"), "YOUR_")])
      error_message = "auth_data.auto.tfvars still has placeholders: put your own user_name and password there, or `auth_data = ({})` to use clouds.yaml or OS_* variables."
    }
    precondition {
      condition     = (var.auth_data.user_name == null) == (var.auth_data.password == null)
      error_message = "auth_data has only one of user_name and password: give both, or neither."
    }
    precondition {
      condition     = (var.auth_data.application_credential_id == null) == (var.auth_data.application_credential_secret == null)
      error_message = "auth_data has only one of application_credential_id and application_credential_secret: give both (`openstack application credential create NAME` prints them), or neither."
    }
    precondition {
      condition     = var.auth_data.user_name == null || var.auth_data.application_credential_id == null
      error_message = "auth_data has both a password and an application credential: remove one, best the password."
    }
  }
}

data "openstack_compute_flavor_v2" "master" { # horovod_master_node.flavor_name: see `openstack flavor list`
  name       = var.horovod_master_node.flavor_name
  depends_on = [data.openstack_identity_auth_scope_v3.project]
}

data "openstack_compute_flavor_v2" "worker" { # horovod_worker_node.flavor_name: see `openstack flavor list`
  count      = local.worker.flavor_name == var.horovod_master_node.flavor_name ? 0 : 1
  name       = local.worker.flavor_name
  depends_on = [data.openstack_identity_auth_scope_v3.project]
}

# Newest first: a name may stand for several. Of an id it can only be told whether it is among all.
data "openstack_images_image_ids_v2" "master" {
  name       = var.horovod_master_node.image_name
  sort       = "created_at:desc"
  depends_on = [data.openstack_identity_auth_scope_v3.project]
}

data "openstack_images_image_ids_v2" "worker" {
  count      = local.worker.own_image ? 1 : 0
  name       = var.horovod_worker_node.image_name
  sort       = "created_at:desc"
  depends_on = [data.openstack_identity_auth_scope_v3.project]
}

data "openstack_compute_keypair_v2" "given" { # horovod_master_node.key_pair: see `openstack keypair list`
  count      = local.upload_key ? 0 : 1
  name       = var.horovod_master_node.key_pair
  depends_on = [data.openstack_identity_auth_scope_v3.project]
}

data "openstack_networking_floatingip_v2" "given" { # horovod_master_node.public_ip: see `openstack floating ip list`
  count      = local.given_address == null ? 0 : 1
  address    = local.given_address
  depends_on = [data.openstack_identity_auth_scope_v3.project]
}

# The project's own limits. Nova answers everybody who does not name a project, and only administrators who do.
data "openstack_compute_limits_v2" "project" {
  project_id = ""
  depends_on = [data.openstack_identity_auth_scope_v3.project]
}

data "openstack_networking_quota_v2" "project" {
  project_id = data.openstack_identity_auth_scope_v3.project.project_id
}

data "openstack_blockstorage_quotaset_v3" "project" {
  count      = local.volume_needs.volumes > 0 ? 1 : 0
  project_id = data.openstack_identity_auth_scope_v3.project.project_id
}

# What of the project's use is this cluster already: each of its machines has one port, and the port a device. A port
# that waits for its machine has none, and one whose machine is stopped still has it. Administrators would see those of
# all projects.
data "openstack_networking_port_ids_v2" "master" {
  tags       = concat(local.tags, ["ronde-master"])
  project_id = data.openstack_identity_auth_scope_v3.project.project_id
}

data "openstack_networking_port_ids_v2" "worker" {
  tags       = concat(local.tags, ["ronde-worker"])
  project_id = data.openstack_identity_auth_scope_v3.project.project_id
}

data "openstack_networking_port_v2" "there" {
  for_each = toset(concat(data.openstack_networking_port_ids_v2.master.ids, data.openstack_networking_port_ids_v2.worker.ids))
  port_id  = each.key
}

locals {
  worker_flavor = one(data.openstack_compute_flavor_v2.worker) != null ? one(data.openstack_compute_flavor_v2.worker) : data.openstack_compute_flavor_v2.master

  master_images = data.openstack_images_image_ids_v2.master.ids
  worker_images = local.worker.own_image ? data.openstack_images_image_ids_v2.worker[0].ids : local.master_images
  master_image  = var.horovod_master_node.image_id != null ? var.horovod_master_node.image_id : try(local.master_images[0], "")
  worker_image  = !local.worker.own_image ? local.master_image : var.horovod_worker_node.image_id != null ? var.horovod_worker_node.image_id : try(local.worker_images[0], "")

  # Clouds say by a flavour's extra specs which devices a machine gets.
  gpus_of = {
    for kind, specs in {
      master = data.openstack_compute_flavor_v2.master.extra_specs
      worker = local.worker_flavor.extra_specs
    } :
    kind => sum(concat(
      [for alias in split(",", lookup(specs, "pci_passthrough:alias", "none:0")) : try(tonumber(split(":", alias)[1]), 1)],
      [for resource in ["VGPU", "PGPU"] : tonumber(lookup(specs, "resources:${resource}", "0"))],
    ))
  }
  master_gpus = var.horovod_master_node.gpus != null ? var.horovod_master_node.gpus : local.gpus_of.master
  worker_gpus = var.horovod_worker_node.gpus != null ? var.horovod_worker_node.gpus : local.gpus_of.worker

  # Ports whose mark is the name alone are of a cluster from before it had an identity.
  is_own = { for id, port in data.openstack_networking_port_v2.there : id => contains([local.own_mark, local.name_mark], port.description) }

  # What this plan adds to what the project uses already; -1 stands for no limit.
  machines_there = {
    for kind, ids in {
      master = data.openstack_networking_port_ids_v2.master.ids
      worker = data.openstack_networking_port_ids_v2.worker.ids
    } :
    kind => length([for id in ids : id if local.is_own[id] && data.openstack_networking_port_v2.there[id].device_id != ""])
  }
  new_masters = max(1 - local.machines_there.master, 0)
  new_workers = max(local.worker.count - local.machines_there.worker, 0)
  limits      = data.openstack_compute_limits_v2.project
  compute = {
    instances = {
      most = local.limits.max_total_instances
      used = local.limits.total_instances_used
      more = local.new_masters + local.new_workers
      unit = "machines"
    }
    cores = {
      most = local.limits.max_total_cores
      used = local.limits.total_cores_used
      more = local.new_masters * data.openstack_compute_flavor_v2.master.vcpus + local.new_workers * local.worker_flavor.vcpus
      unit = "cores"
    }
    ram = {
      most = local.limits.max_total_ram_size
      used = local.limits.total_ram_used
      more = local.new_masters * data.openstack_compute_flavor_v2.master.ram + local.new_workers * local.worker_flavor.ram
      unit = "MB of memory"
    }
  }
  exceeded = [
    for name, use in local.compute :
    "${name}: ${use.more} more ${use.unit} are needed, and ${use.used} of ${use.most} are in use"
    if use.most >= 0 && use.more > 0 && use.used + use.more > use.most
  ]

  # Neutron and Cinder tell their limits, and not what is in use.
  network_quota = data.openstack_networking_quota_v2.project
  network_needs = {
    network        = local.own_network ? 1 : 0
    subnet         = local.own_network ? 1 : 0
    router         = local.own_network ? 1 : 0
    floatingip     = local.allocate ? 1 : 0
    port           = 1 + local.worker.count
    security_group = 2
    # Neutron makes two in every group, for what goes out; two are for the cluster, and two for each of the administrators.
    security_group_rule = 2 * 2 + 2 + length(local.access_rules)
  }
  network_exceeded = [
    for name, need in local.network_needs : "${name}: ${need} needed, ${local.network_quota[name]} allowed"
    if local.network_quota[name] >= 0 && need > local.network_quota[name]
  ]
}

locals {
  volume_sizes = concat(
    [var.horovod_master_node.volume_size, var.horovod_master_node.boot_volume_size],
    [for _ in range(local.worker.count) : local.worker.boot_volume_size],
  )
  volume_needs = {
    volumes   = length([for size in local.volume_sizes : size if size > 0])
    gigabytes = sum(local.volume_sizes)
  }
  volume_exceeded = flatten([
    for quota in data.openstack_blockstorage_quotaset_v3.project : [
      for name, need in local.volume_needs : "${name}: ${need} needed, ${quota[name]} allowed"
      if quota[name] >= 0 && need > quota[name]
    ]
  ])
}

resource "terraform_data" "checks" {
  input = local.own_mark

  lifecycle {
    # Without ports of that name it holds before the identity is known, and so in the first plan already.
    precondition {
      condition     = alltrue(values(local.is_own))
      error_message = "The project has another cluster that is called ${var.cluster_name}, and it is not the one of this folder: give yours another cluster_name in resources.auto.tfvars. `openstack port list --long --tags ${local.name_mark}` shows the other's ports; those that an interrupted run of this folder has lost, python3 leftovers.py lists."
    }
    precondition {
      condition     = var.horovod_master_node.image_id != null ? contains(local.master_images, var.horovod_master_node.image_id) : length(local.master_images) > 0
      error_message = "The cloud has no image ${coalesce(var.horovod_master_node.image_name, var.horovod_master_node.image_id)} (horovod_master_node): `openstack image list` shows those it has."
    }
    precondition {
      condition     = !local.worker.own_image || (var.horovod_worker_node.image_id != null ? contains(local.worker_images, var.horovod_worker_node.image_id) : length(local.worker_images) > 0)
      error_message = "The cloud has no image ${try(coalesce(var.horovod_worker_node.image_name, var.horovod_worker_node.image_id), "")} (horovod_worker_node): `openstack image list` shows those it has."
    }
    precondition {
      condition     = data.openstack_compute_flavor_v2.master.disk > 0 || var.horovod_master_node.boot_volume_size > 0
      error_message = "The flavour ${var.horovod_master_node.flavor_name} has no disk: give horovod_master_node.boot_volume_size (in GB), or another flavour."
    }
    precondition {
      condition     = local.worker_flavor.disk > 0 || local.worker.boot_volume_size > 0
      error_message = "The flavour ${local.worker.flavor_name} has no disk: give horovod_worker_node.boot_volume_size (in GB), or another flavour."
    }
    precondition {
      condition     = !local.upload_key || local.key_source != ""
      error_message = "There is no public key in ~/.ssh to let you in with. Make one (ssh-keygen -t ed25519); or, if yours came with `ssh -A`, write it down (ssh-add -L >key.pub) and give horovod_master_node.public_key = \"key.pub\"; or name a key pair of your project as horovod_master_node.key_pair."
    }
    precondition {
      condition     = !local.upload_key || local.key_source == "" || local.key_is_good || local.key_is_private
      error_message = "horovod_master_node.public_key must be an OpenSSH public key (ssh-ed25519 AAAA…) or the name of a file that holds one; what it says is neither."
    }
    precondition {
      condition     = !local.key_is_private
      error_message = "horovod_master_node.public_key is a private key, which must never leave your machine: give the file that ends in .pub."
    }
    # No name of an image begins like this.
    precondition {
      condition     = !can(regex("^[/~.]", var.image)) || try(fileexists(local.image), false)
      error_message = "There is no archive ${var.image} here (image): write one with `docker save --output FILE IMAGE`, or give the name of an image."
    }
    precondition {
      condition = local.given_address == null ? true : (
        coalesce(data.openstack_networking_floatingip_v2.given[0].port_id, "-") == "-" ||
        contains([for id in data.openstack_networking_port_ids_v2.master.ids : id if local.is_own[id]], data.openstack_networking_floatingip_v2.given[0].port_id)
      )
      error_message = "The address ${var.horovod_master_node.public_ip} (horovod_master_node.public_ip) is in use by another machine: take one that is not (openstack floating ip list), or \"\" to get a new one."
    }
    precondition {
      condition     = !local.own_network || pow(2, 32 - tonumber(split("/", var.network.cidr)[1])) - 5 >= 1 + local.worker.count
      error_message = "network.cidr ${var.network.cidr} has no room for ${1 + local.worker.count} machines: take a larger range."
    }
    precondition {
      condition     = length(local.exceeded) == 0
      error_message = "The project's quota is too small. ${join("; ", local.exceeded)}. Ask for more, delete what you no longer need (openstack server list), or take fewer workers or a smaller flavour."
    }
    precondition {
      condition     = length(local.volume_exceeded) == 0
      error_message = "The project's quota is too small. ${join("; ", local.volume_exceeded)}. Ask for more, or take a smaller volume_size or boot_volume_size."
    }
    precondition {
      condition     = length(local.network_exceeded) == 0
      error_message = "The project's quota is too small. ${join("; ", local.network_exceeded)}. Ask for more, or name a network that is there already (network.name) or a floating IP that you have (horovod_master_node.public_ip)."
    }
  }
}
