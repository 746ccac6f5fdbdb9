# What to make, and where. Everything that can be said here is listed in variables.tf.

openstack_provider = ({
  auth_url         = "https://YOUR_KEYSTONE:5000/v3"
  project_name     = "YOUR_PROJECT"
  region           = "RegionOne"
  user_domain_name = "Default"
})

# public_ip: a floating IP of your project, or "" to get a new one.
# key_pair: the name of a key pair of your project; without it, your ~/.ssh/id_ed25519.pub is put there.
horovod_master_node = ({
  flavor_name = "YOUR_FLAVOR"
  image_name  = "YOUR_IMAGE"
  public_ip   = ""
})

horovod_worker_node = ({
  count       = 1
  flavor_name = "YOUR_FLAVOR"
})

# Who may reach ssh and JupyterLab: the address that your machine is seen with from outside, and /32.
admin_cidr = "YOUR.PUBLIC.ADDRESS/32"

# The user that the image lets in: debian, ubuntu, …
ssh_user = "debian"
