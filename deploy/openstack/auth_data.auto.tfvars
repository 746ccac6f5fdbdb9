# Who you are. This file then holds a secret: chmod 600 it, and keep it out of version control.
#
# Better: an application credential, which can be taken back and cannot change your account
# (openstack application credential create ronde):
#   auth_data = ({ application_credential_id = "…", application_credential_secret = "…" })
# or nothing here at all, with an entry in clouds.yaml or OS_* variables:
#   auth_data = ({})

auth_data = ({
  user_name = "YOUR_USER_NAME"
  password  = "YOUR_PASSWORD"
})
