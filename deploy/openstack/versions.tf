# Terraform 1.5 or newer, or OpenTofu. Everything here exists in the provider's versions 1.54 and 3.x alike.

terraform {
  required_version = ">= 1.5"

  required_providers {
    openstack = {
      source  = "terraform-provider-openstack/openstack"
      version = ">= 1.54, < 4"
    }
  }
}

# What is null here, the provider takes from OS_* variables or from the entry of clouds.yaml.
provider "openstack" {
  cloud                         = var.openstack_provider.cloud
  auth_url                      = var.openstack_provider.auth_url
  region                        = var.openstack_provider.region
  tenant_name                   = try(coalesce(var.openstack_provider.project_name, var.openstack_provider.tenant_name), null)
  user_domain_name              = var.openstack_provider.user_domain_name
  project_domain_name           = var.openstack_provider.project_domain_name
  insecure                      = var.openstack_provider.insecure
  cacert_file                   = var.openstack_provider.cacert_file
  user_name                     = var.auth_data.user_name
  password                      = var.auth_data.password
  application_credential_id     = var.auth_data.application_credential_id
  application_credential_secret = var.auth_data.application_credential_secret
}
