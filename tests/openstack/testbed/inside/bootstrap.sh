#!/bin/bash
# Runs once inside the test cloud's root (prepare): configures OpenStack's services, fills their databases, and makes the
# users: `admin`, those of the services, and `anna`, an ordinary member of the project `research`.
#
# All of it listens on the loopback of a network of its own, so its passwords guard nothing.
set -euo pipefail
database=mysql+pymysql://openstack:openstack@127.0.0.1
keystone=http://127.0.0.1:5000/v3

# service_user NAME: the lines by which a service proves to be NAME.
service_user() {
    cat <<END
auth_type = password
auth_url = $keystone
project_domain_name = Default
user_domain_name = Default
project_name = service
region_name = RegionOne
username = $1
password = of-a-service
END
}

token_check() {
    printf '[keystone_authtoken]\nwww_authenticate_uri = %s\nmemcached_servers = 127.0.0.1:11211\n' "$keystone"
    service_user "$1"
}

cat >/etc/keystone/keystone.conf <<END
[database]
connection = $database/keystone
[token]
provider = fernet
[cache]
enabled = true
backend = dogpile.cache.memcached
memcache_servers = 127.0.0.1:11211
END

cat >/etc/glance/glance-api.conf <<END
[DEFAULT]
bind_host = 127.0.0.1
workers = 1
[database]
connection = $database/glance
[glance_store]
stores = file
default_store = file
filesystem_store_datadir = /var/lib/glance/images/
[paste_deploy]
flavor = keystone
$(token_check glance)
END

cat >/etc/placement/placement.conf <<END
[placement_database]
connection = $database/placement
[api]
auth_strategy = keystone
$(token_check placement)
END

cat >/etc/nova/nova.conf <<END
[DEFAULT]
compute_driver = servers.NamespaceDriver
transport_url = rabbit://guest:guest@127.0.0.1:5672/
my_ip = 127.0.0.1
host = cloud
state_path = /var/lib/nova
osapi_compute_workers = 1
reserved_host_memory_mb = 0
[api]
auth_strategy = keystone
[api_database]
connection = $database/nova_api
[database]
connection = $database/nova
[conductor]
workers = 1
[scheduler]
workers = 1
[glance]
api_servers = http://127.0.0.1:9292
[placement]
$(service_user placement)
[neutron]
$(service_user neutron)
[cinder]
auth_type = none
[oslo_concurrency]
lock_path = /var/lib/nova/tmp
[vnc]
enabled = false
$(token_check nova)
END

cat >/etc/neutron/neutron.conf <<END
[DEFAULT]
core_plugin = ml2
service_plugins = router
transport_url = rabbit://guest:guest@127.0.0.1:5672/
auth_strategy = keystone
bind_host = 127.0.0.1
api_workers = 1
rpc_workers = 0
rpc_state_report_workers = 0
notify_nova_on_port_status_changes = true
notify_nova_on_port_data_changes = true
[database]
connection = $database/neutron
[nova]
$(service_user nova)
[oslo_concurrency]
lock_path = /var/lib/neutron/tmp
$(token_check neutron)
END

mkdir -p /etc/neutron/plugins/ml2
cat >/etc/neutron/plugins/ml2/ml2_conf.ini <<END
[ml2]
type_drivers = flat,vxlan
tenant_network_types = vxlan
mechanism_drivers = wires
extension_drivers = port_security
[ml2_type_flat]
flat_networks = *
[ml2_type_vxlan]
vni_ranges = 1:1000
END

# Our two drivers, from where init.sh shows them. Nova takes its own by the name of a module of nova.virt, Neutron by an
# entry point.
packages=/usr/lib/python3/dist-packages
ln -s /srv/cloud/servers.py $packages/nova/virt/
ln -s /srv/cloud/wires.py $packages/
mkdir -p $packages/wires-1.dist-info
printf 'Metadata-Version: 2.1\nName: wires\nVersion: 1\n' >$packages/wires-1.dist-info/METADATA
printf '[neutron.ml2.mechanism_drivers]\nwires = wires:Wires\n' >$packages/wires-1.dist-info/entry_points.txt

# await SECONDS COMMAND...: tries until it succeeds.
await() {
    local end=$((SECONDS + $1))
    shift
    until "$@" >/dev/null 2>&1; do
        [ $SECONDS -lt "$end" ] || { echo "error: waited in vain: $*" >&2 && "$@"; }
        sleep 0.2 # sleep: between two tries
    done
}

mkdir -p /run/mysqld /var/lib/nova/tmp /var/lib/neutron/tmp
chown mysql: /run/mysqld
mariadbd --user=mysql --bind-address=127.0.0.1 --innodb-flush-log-at-trx-commit=0 >/var/log/mariadb.log 2>&1 &
memcached -u memcache -l 127.0.0.1 &
await 60 mariadb-admin ping
for name in keystone glance placement nova nova_api nova_cell0 neutron; do
    mariadb -e "CREATE DATABASE $name CHARACTER SET utf8mb3;
        GRANT ALL ON $name.* TO openstack@localhost IDENTIFIED BY 'openstack';
        GRANT ALL ON $name.* TO openstack@127.0.0.1 IDENTIFIED BY 'openstack';"
done

keystone-manage db_sync
keystone-manage fernet_setup --keystone-user keystone --keystone-group keystone
keystone-manage credential_setup --keystone-user keystone --keystone-group keystone
keystone-manage bootstrap --bootstrap-password of-the-admin --bootstrap-region-id RegionOne \
    --bootstrap-admin-url $keystone/ --bootstrap-internal-url $keystone/ --bootstrap-public-url $keystone/
glance-manage db_sync
placement-manage db sync
nova-manage api_db sync
nova-manage cell_v2 map_cell0 --database_connection $database/nova_cell0
nova-manage cell_v2 create_cell --name cell1
nova-manage db sync
neutron-db-manage --config-file /etc/neutron/neutron.conf --config-file /etc/neutron/plugins/ml2/ml2_conf.ini \
    upgrade heads
chown -R keystone: /var/log/keystone /etc/keystone/fernet-keys /etc/keystone/credential-keys

uwsgi --plugin python3 --add-header "Connection: close" --http-socket 127.0.0.1:5000 \
    --wsgi-file /usr/bin/keystone-wsgi-public --buffer-size 65535 --uid keystone --gid keystone \
    >/var/log/keystone-bootstrap.log 2>&1 &
server=$!
await 60 python3 -c "import urllib.request as request; request.urlopen('$keystone')"
python3 - $keystone <<'END'
import sys

from keystoneauth1 import session
from keystoneauth1.identity import v3
from keystoneclient.v3 import client

login = v3.Password(
    auth_url=sys.argv[1], username="admin", password="of-the-admin", project_name="admin",
    user_domain_name="Default", project_domain_name="Default",
)
keystone = client.Client(session=session.Session(auth=login), interface="public")
roles = {role.name: role for role in keystone.roles.list()}
services = keystone.projects.create("service", "default")
for name, kind, address in [
    ("glance", "image", "http://127.0.0.1:9292"),
    ("placement", "placement", "http://127.0.0.1:8778"),
    ("nova", "compute", "http://127.0.0.1:8774/v2.1"),
    ("neutron", "network", "http://127.0.0.1:9696"),
]:
    user = keystone.users.create(name, domain="default", password="of-a-service")
    keystone.roles.grant(roles["admin"], user=user, project=services)
    service = keystone.services.create(name, kind)
    keystone.endpoints.create(service, address, "public", "RegionOne")
    keystone.endpoints.create(service, address, "internal", "RegionOne")
research = keystone.projects.create("research", "default")
anna = keystone.users.create("anna", domain="default", password="correct-horse-battery")
keystone.roles.grant(roles["member"], user=anna, project=research)
END
kill -INT $server
wait $server || :
mariadb-admin shutdown
