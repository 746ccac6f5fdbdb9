# What users say, in auth_data.auto.tfvars and resources.auto.tfvars, and what is wrong with it as far as a value alone
# can tell. What only the cloud can tell is in checks.tf.

# Checked in checks.tf: of a variable that is wrong Terraform shows the lines it was given with, a password and all.
variable "auth_data" {
  description = "Who you are. Leave it empty ({}) to use clouds.yaml or OS_* variables."
  type = object({
    user_name                     = optional(string)
    password                      = optional(string)
    application_credential_id     = optional(string)
    application_credential_secret = optional(string)
  })
  default   = {}
  nullable  = false
  sensitive = true
}

variable "openstack_provider" {
  description = "Which cloud and project. `cloud` names an entry of clouds.yaml, which may hold all the rest."
  type = object({
    cloud               = optional(string)
    auth_url            = optional(string)
    region              = optional(string)
    project_name        = optional(string)
    tenant_name         = optional(string)
    user_domain_name    = optional(string)
    project_domain_name = optional(string)
    insecure            = optional(bool)
    cacert_file         = optional(string)
  })
  default  = {}
  nullable = false

  validation {
    condition     = !anytrue([for value in values(var.openstack_provider) : strcontains(coalesce(value, "-"), "YOUR_")])
    error_message = "resources.auto.tfvars still has placeholders in openstack_provider: put your cloud's auth_url and project_name there (both are in the RC file that the dashboard offers), or the name of your entry in clouds.yaml as `cloud`."
  }
  validation {
    condition     = can(regex("^https?://", coalesce(var.openstack_provider.auth_url, "https://")))
    error_message = "openstack_provider.auth_url must be the address of Keystone, such as https://keystone.example.org:5000/v3."
  }
  validation {
    condition     = var.openstack_provider.project_name == null || var.openstack_provider.tenant_name == null
    error_message = "openstack_provider has both project_name and tenant_name, which mean the same: remove one."
  }
}

variable "horovod_master_node" {
  description = "The machine with the public address, JupyterLab and the shared folder."
  type = object({
    flavor_name       = string
    image_name        = optional(string)
    image_id          = optional(string)
    key_pair          = optional(string)
    public_key        = optional(string)
    public_ip         = optional(string, "")
    volume_size       = optional(number, 0)
    volume_type       = optional(string)
    boot_volume_size  = optional(number, 0)
    availability_zone = optional(string)
    gpus              = optional(number)
  })
  nullable = false

  validation {
    condition     = !anytrue([for value in values(var.horovod_master_node) : startswith(coalesce(value, "-"), "YOUR_")])
    error_message = "resources.auto.tfvars still has placeholders in horovod_master_node: put a flavour (openstack flavor list) and an image (openstack image list) of your cloud there."
  }
  validation {
    condition     = (var.horovod_master_node.image_name == null) != (var.horovod_master_node.image_id == null)
    error_message = "horovod_master_node needs either image_name or image_id (openstack image list), and not both."
  }
  validation {
    condition     = var.horovod_master_node.key_pair == null || var.horovod_master_node.public_key == null
    error_message = "horovod_master_node has both key_pair (the name of one that is in the cloud) and public_key (one to put there): remove one."
  }
  validation {
    condition     = contains(["", "none"], var.horovod_master_node.public_ip) || can(cidrhost("${var.horovod_master_node.public_ip}/32", 0))
    error_message = "horovod_master_node.public_ip must be a floating IP of your project (openstack floating ip list), \"\" to get a new one, or \"none\" if machines are reached without one."
  }
  validation {
    condition     = alltrue([for size in [var.horovod_master_node.volume_size, var.horovod_master_node.boot_volume_size] : size >= 0 && floor(size) == size])
    error_message = "horovod_master_node.volume_size and boot_volume_size are in GB: whole numbers, 0 for no volume."
  }
  validation {
    condition     = coalesce(var.horovod_master_node.gpus, 0) >= 0
    error_message = "horovod_master_node.gpus cannot be less than 0; leave it out to have it read from the flavour."
  }
}

variable "horovod_worker_node" {
  description = "The other machines; what is left out is as the master's."
  type = object({
    count             = optional(number, 1)
    flavor_name       = optional(string)
    image_name        = optional(string)
    image_id          = optional(string)
    boot_volume_size  = optional(number)
    availability_zone = optional(string)
    gpus              = optional(number)
  })
  default  = {}
  nullable = false

  validation {
    condition     = !anytrue([for value in values(var.horovod_worker_node) : startswith(coalesce(value, "-"), "YOUR_")])
    error_message = "resources.auto.tfvars still has placeholders in horovod_worker_node: put a flavour and an image of your cloud there, or leave both out to have the master's."
  }
  validation {
    condition     = var.horovod_worker_node.count >= 0 && var.horovod_worker_node.count <= 500 && floor(var.horovod_worker_node.count) == var.horovod_worker_node.count
    error_message = "horovod_worker_node.count must be a whole number from 0 to 500."
  }
  validation {
    condition     = var.horovod_worker_node.image_name == null || var.horovod_worker_node.image_id == null
    error_message = "horovod_worker_node has both image_name and image_id: remove one."
  }
  validation {
    condition     = coalesce(var.horovod_worker_node.boot_volume_size, 0) >= 0 && floor(coalesce(var.horovod_worker_node.boot_volume_size, 0)) == coalesce(var.horovod_worker_node.boot_volume_size, 0)
    error_message = "horovod_worker_node.boot_volume_size is in GB: a whole number, 0 for no volume."
  }
  validation {
    condition     = coalesce(var.horovod_worker_node.gpus, 0) >= 0
    error_message = "horovod_worker_node.gpus cannot be less than 0; leave it out to have it read from the flavour."
  }
}

variable "admin_cidr" {
  description = "Who may reach ssh and JupyterLab: your address, or several with commas between them."
  type        = string
  nullable    = false

  validation {
    condition     = !strcontains(var.admin_cidr, "YOUR")
    error_message = "admin_cidr in resources.auto.tfvars still has its placeholder: put the address there that your machine is seen with from outside, followed by /32, for example 203.0.113.7/32. Only from there ssh and JupyterLab can be reached."
  }
  validation {
    condition     = strcontains(var.admin_cidr, "YOUR") || alltrue([for cidr in split(",", var.admin_cidr) : can(cidrhost(trimspace(cidr), 0))])
    error_message = "admin_cidr must be a range of addresses such as 203.0.113.7/32 (one machine) or 203.0.113.0/24 (a network), or several with commas between them."
  }
  validation {
    condition = alltrue([
      for cidr in split(",", var.admin_cidr) :
      try(tonumber(split("/", trimspace(cidr))[1]), 128) >= (strcontains(cidr, ":") ? 16 : 8)
    ])
    error_message = "admin_cidr would open ssh and JupyterLab to the whole world, or to much of it: name your own address or network, for example 203.0.113.7/32."
  }
}

variable "network" {
  description = "The cluster's own network, or with `name` or `id` one that is there already."
  type = object({
    cidr             = optional(string, "10.20.30.0/24")
    dns              = optional(list(string), [])
    external_network = optional(string)
    name             = optional(string)
    id               = optional(string)
  })
  default  = {}
  nullable = false

  validation {
    condition     = can(cidrhost(var.network.cidr, 0)) && !strcontains(var.network.cidr, ":")
    error_message = "network.cidr must be a range of private IPv4 addresses such as 10.20.30.0/24."
  }
  validation {
    condition     = try(tonumber(split("/", var.network.cidr)[1]), 0) >= 8 && try(tonumber(split("/", var.network.cidr)[1]), 99) <= 28
    error_message = "network.cidr must have between 8 and 28 bits after the slash: 10.20.30.0/24 has room for 250 machines."
  }
  validation {
    condition     = alltrue([for server in var.network.dns : can(cidrhost("${server}/${strcontains(server, ":") ? 128 : 32}", 0))])
    error_message = "network.dns must be a list of addresses of name servers; leave it out to have the cloud's."
  }
  validation {
    condition     = var.network.name == null || var.network.id == null
    error_message = "network has both name and id: remove one."
  }
}

variable "cluster_name" {
  description = "What the names of all resources begin with; two clusters in one project need two."
  type        = string
  default     = "ronde"
  nullable    = false

  validation {
    condition     = can(regex("^[a-z]([a-z0-9-]{0,30}[a-z0-9])?$", var.cluster_name))
    error_message = "cluster_name must be at most 32 small letters, digits and hyphens, and begin with a letter."
  }
}

variable "server_group" {
  description = "Whether the cloud keeps the machines together (affinity) or apart (anti-affinity); soft-… only tries. Empty: as it likes."
  type        = string
  default     = ""
  nullable    = false

  validation {
    condition     = contains(["", "affinity", "anti-affinity", "soft-affinity", "soft-anti-affinity"], var.server_group)
    error_message = "server_group must be affinity, anti-affinity, soft-affinity, soft-anti-affinity, or empty."
  }
}

variable "ssh_user" {
  description = "The user that the image lets in by key; of images with Debian or Ubuntu mostly debian or ubuntu."
  type        = string
  default     = "debian"
  nullable    = false

  validation {
    condition     = can(regex("^[a-z_][a-z0-9_-]*$", var.ssh_user))
    error_message = "ssh_user must be the name of a user, such as debian or ubuntu: the documentation of the image says which."
  }
}

variable "framework" {
  description = "What the container image trains with."
  type        = string
  default     = "tensorflow"
  nullable    = false

  validation {
    condition     = contains(["tensorflow", "torch"], var.framework)
    error_message = "framework must be tensorflow or torch."
  }
}

variable "image" {
  description = "A container image to use instead of the one that the master builds."
  type        = string
  default     = ""
  nullable    = false

  validation {
    condition     = can(regex("^[A-Za-z0-9._/:@~+-]*$", var.image))
    error_message = "image must be the name of a container image, such as registry.example.org/ronde:gpu, or of an archive that `docker save` wrote; leave it empty to have one built."
  }
}

variable "configure" {
  description = "Whether Ansible prepares the machines; false makes machines only."
  type        = bool
  default     = true
  nullable    = false
}

variable "ansible_playbook" {
  description = "The program that does it, where it is not found by its name."
  type        = string
  default     = "ansible-playbook"
  nullable    = false
}

variable "ready_timeout" {
  description = "How many seconds a machine may take from its creation until it lets us in and cloud-init is done."
  type        = number
  default     = 900
  nullable    = false

  validation {
    condition     = var.ready_timeout >= 1 && floor(var.ready_timeout) == var.ready_timeout
    error_message = "ready_timeout is in seconds, at least 1: a whole number."
  }
}
