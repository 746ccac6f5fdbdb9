# The network of the machines: our own with a router, or one that is there. And who may come in.

data "openstack_networking_network_v2" "existing" { # network.name or network.id: see `openstack network list`
  count      = local.own_network ? 0 : 1
  name       = var.network.name
  network_id = var.network.id
  depends_on = [data.openstack_identity_auth_scope_v3.project]
}

# Without a name it is the only one there is, if there is only one. A given floating IP knows where it is from.
data "openstack_networking_network_v2" "external" { # name it in network.external_network: see `openstack network list --external`
  count      = local.needs_external && local.given_address == null ? 1 : 0
  name       = var.network.external_network
  external   = true
  depends_on = [data.openstack_identity_auth_scope_v3.project]
}

locals {
  own_network    = var.network.name == null && var.network.id == null
  allocate       = var.horovod_master_node.public_ip == ""
  given_address  = contains(["", "none"], var.horovod_master_node.public_ip) ? null : var.horovod_master_node.public_ip
  needs_external = local.own_network || local.allocate
  external_id    = local.given_address != null ? one(data.openstack_networking_floatingip_v2.given[*].pool) : one(data.openstack_networking_network_v2.external[*].id)
  network_id     = local.own_network ? one(openstack_networking_network_v2.cluster[*].id) : one(data.openstack_networking_network_v2.existing[*].id)
}

resource "openstack_networking_network_v2" "cluster" {
  count       = local.own_network ? 1 : 0
  name        = var.cluster_name
  description = local.mark
  tags        = local.tags
}

resource "openstack_networking_subnet_v2" "cluster" {
  count           = local.own_network ? 1 : 0
  name            = var.cluster_name
  description     = local.mark
  network_id      = openstack_networking_network_v2.cluster[0].id
  cidr            = var.network.cidr
  ip_version      = 4
  dns_nameservers = var.network.dns
  tags            = local.tags
}

resource "openstack_networking_router_v2" "cluster" {
  count               = local.own_network ? 1 : 0
  name                = var.cluster_name
  description         = local.mark
  external_network_id = local.external_id
  tags                = local.tags
}

resource "openstack_networking_router_interface_v2" "cluster" {
  count     = local.own_network ? 1 : 0
  router_id = openstack_networking_router_v2.cluster[0].id
  subnet_id = openstack_networking_subnet_v2.cluster[0].id
}

# All machines. Whatever is between them is open, and nothing else.
resource "openstack_networking_secgroup_v2" "cluster" {
  name        = "${var.cluster_name}-cluster"
  description = local.mark
  tags        = local.tags
}

resource "openstack_networking_secgroup_rule_v2" "cluster" {
  for_each          = toset(["IPv4", "IPv6"])
  direction         = "ingress"
  ethertype         = each.key
  remote_group_id   = openstack_networking_secgroup_v2.cluster.id
  security_group_id = openstack_networking_secgroup_v2.cluster.id
  description       = local.mark

  lifecycle {
    # A rule from before it had a mark would be made anew for it.
    ignore_changes = [description]
  }
}

# The master alone: ssh and JupyterLab, for administrators.
resource "openstack_networking_secgroup_v2" "access" {
  name        = "${var.cluster_name}-access"
  description = local.mark
  tags        = local.tags
}

locals {
  access_rules = {
    for pair in setproduct(distinct([for cidr in split(",", var.admin_cidr) : trimspace(cidr)]), [22, 8888]) :
    "${pair[0]} ${pair[1]}" => { cidr = pair[0], port = pair[1] }
  }
}

resource "openstack_networking_secgroup_rule_v2" "access" {
  for_each          = local.access_rules
  direction         = "ingress"
  ethertype         = strcontains(each.value.cidr, ":") ? "IPv6" : "IPv4"
  protocol          = "tcp"
  port_range_min    = each.value.port
  port_range_max    = each.value.port
  remote_ip_prefix  = each.value.cidr
  security_group_id = openstack_networking_secgroup_v2.access.id
  description       = local.mark

  lifecycle {
    # A rule from before it had a mark would be made anew for it.
    ignore_changes = [description]
  }
}

resource "openstack_networking_floatingip_v2" "master" {
  count       = local.allocate ? 1 : 0
  pool        = data.openstack_networking_network_v2.external[0].name
  description = local.mark
  tags        = local.tags
}

resource "openstack_networking_floatingip_associate_v2" "master" {
  count       = var.horovod_master_node.public_ip == "none" ? 0 : 1
  floating_ip = local.allocate ? openstack_networking_floatingip_v2.master[0].address : local.given_address
  port_id     = openstack_networking_port_v2.master.id
  # Only through the router an address outside can be one inside.
  depends_on = [openstack_networking_router_interface_v2.cluster]
}
