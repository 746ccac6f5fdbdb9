# What to do next.

locals {
  slots      = [for name in local.names : max(local.machines[name].gpus, 1)]
  hosts      = join(",", [for index, slots in local.slots : "host${index + 1}:${slots}"])
  to_master  = "ssh -F '${local.folder}/ssh_config' ${local.master_name}"
  an_example = var.framework == "torch" ? "/examples/torch_digits.py" : "/examples/tensorflow2_mnist.py"
}

output "master_address" {
  description = "Where the master is reached."
  value       = local.master_address
}

output "master_private_address" {
  description = "The master's address inside the cluster."
  value       = local.master_private
}

output "workers" {
  description = "The workers' addresses inside the cluster."
  value       = { for name in local.names : name => local.machines[name].private if name != local.master_name }
}

output "ssh" {
  description = "A shell on the master."
  value       = local.to_master
}

output "horovodrun" {
  description = "A training over all machines, for a terminal of JupyterLab or the master's container."
  value       = "horovodrun -np ${sum(local.slots)} -H ${local.hosts} -p 12345 python ${local.an_example}"
}

output "jupyter" {
  description = "JupyterLab."
  value       = "https://${local.master_address}:8888/lab"
}

output "jupyter_token" {
  description = "How to read the token that JupyterLab asks for."
  value       = "${local.to_master} sudo docker exec horovod_master cat /run/ronde/jupyter-token.1000"
}

output "inventory" {
  description = "The machines as Ansible knows them."
  value       = "${local.folder}/inventory.yaml"
  depends_on  = [terraform_data.inventory]
}
