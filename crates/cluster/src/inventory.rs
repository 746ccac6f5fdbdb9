//! The machines of a cluster, read from the inventory that Ansible works with: Terraform wrote it, or its owner did.
//! Values in, values out.

use std::collections::BTreeMap;

use saphyr::{LoadableYamlNode, Scalar, Yaml};

/// The port of the containers' ssh servers, if the inventory names no other.
const SSH_PORT: u16 = 12345;
/// Where containers, notebooks and this program look for the shared folder.
pub(crate) const SHARE: &str = "/mnt/share";

/// A cluster's machines, the master first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cluster {
    pub(crate) name: String,
    /// Where JupyterLab is reached.
    pub(crate) public_address: String,
    pub(crate) jupyter_port: u16,
    /// Where the containers' ssh servers listen.
    pub(crate) ssh_port: u16,
    pub(crate) machines: Vec<Machine>,
}

/// A machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Machine {
    pub(crate) name: String,
    /// The name by which containers know it: `host1` is the master.
    pub(crate) alias: String,
    pub(crate) is_master: bool,
    pub(crate) private_address: String,
    pub(crate) container: String,
    /// How many ranks it takes.
    pub(crate) slots: usize,
    pub(crate) way: Way,
}

/// How a machine is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// It is this one.
    Here,
    Ssh {
        address: String,
        user: Option<String>,
        port: Option<u16>,
        key: Option<String>,
        options: Vec<String>,
    },
}

type Vars = BTreeMap<String, String>;

impl Cluster {
    /// Reads an inventory in YAML with the groups `master` and `workers`.
    pub(crate) fn read(text: &str) -> Result<Cluster, String> {
        let no_yaml = |why: &str| format!("it is no inventory in YAML ({why})");
        let documents = Yaml::load_from_str(text).map_err(|error| no_yaml(&error.to_string()))?;
        let document = documents.first().filter(|document| document.as_mapping().is_some());
        let document = document.ok_or_else(|| no_yaml("there are no groups in it"))?;
        let all = document.as_mapping_get("all");
        let of_all = |name: &str| all.and_then(|all| all.as_mapping_get(name));
        let common = vars(of_all("vars"));
        let mut machines = Vec::new();
        // What counts for the whole cluster is what the master knows.
        let mut settings = common.clone();
        for (group, is_master) in [("master", true), ("workers", false)] {
            let below = of_all("children").and_then(|groups| groups.as_mapping_get(group));
            let Some(group) = below.or_else(|| document.as_mapping_get(group)) else { continue };
            let mut of_group = common.clone();
            of_group.extend(vars(group.as_mapping_get("vars")));
            let hosts = group.as_mapping_get("hosts").and_then(Yaml::as_mapping);
            for (at, (name, own)) in hosts.into_iter().flatten().enumerate() {
                let name = name.as_str().ok_or("a host's name is no text")?;
                let mut known = of_group.clone();
                known.extend(vars(of_all("hosts").and_then(|hosts| hosts.as_mapping_get(name))));
                known.extend(vars(Some(own)));
                let at = if is_master { 0 } else { at + 1 };
                machines.push(machine(name, at, &known)?);
                if is_master {
                    settings = known;
                }
            }
        }
        if machines.iter().filter(|machine| machine.is_master).count() != 1 {
            return Err("the group `master` must have exactly one host".to_owned());
        }
        // Names are sorted by letters where Terraform wrote them: worker-10 comes before worker-2.
        machines[1..].sort_by_key(|machine| number_at_end(&machine.name));
        let setting = |name: &str| settings.get(name).filter(|value| !value.is_empty());
        let port = |name: &str, usual: u16| match setting(name) {
            Some(port) => port.parse().map_err(|_| format!("{name} is no port")),
            None => Ok(usual),
        };
        if let Some(other) = setting("share_mount").filter(|place| *place != SHARE) {
            return Err(format!(
                "share_mount is {other}, but notebooks and this command look for the shared folder in {SHARE}: remove it; \
                 share_folder says where its files lie on the master"
            ));
        }
        let public_address = setting("public_address").cloned();
        let public_address = public_address.unwrap_or_else(|| match &machines[0].way {
            Way::Ssh { address, .. } => address.clone(),
            Way::Here => "localhost".to_owned(),
        });
        Ok(Cluster {
            name: setting("cluster_name").cloned().unwrap_or_else(|| "ronde".to_owned()),
            public_address: plain("public_address", public_address)?,
            jupyter_port: port("jupyter_port", 8888)?,
            ssh_port: port("ssh_port", SSH_PORT)?,
            machines,
        })
    }

    /// The one that others are reached through.
    pub(crate) fn master(&self) -> &Machine {
        &self.machines[0]
    }

    /// The machine of this name.
    pub(crate) fn machine(&self, name: &str) -> Option<&Machine> {
        let find = |is_meant: &dyn Fn(&Machine) -> bool| self.machines.iter().find(|one| is_meant(one));
        let prefix = format!("{}-", self.name);
        find(&|machine| machine.name == name)
            .or_else(|| find(&|machine| machine.name.strip_prefix(&prefix) == Some(name)))
            .or_else(|| find(&|machine| machine.alias == name))
    }

    /// All machines as `-H` takes them.
    pub(crate) fn hosts(&self) -> String {
        let hosts: Vec<String> =
            self.machines.iter().map(|machine| format!("{}:{}", machine.name, machine.slots)).collect();
        hosts.join(",")
    }

    /// How many ranks all of them take.
    pub(crate) fn slots(&self) -> usize {
        self.machines.iter().map(|machine| machine.slots).sum()
    }

    /// Where JupyterLab is.
    pub(crate) fn jupyter(&self) -> String {
        format!("https://{}:{}/lab", self.public_address, self.jupyter_port)
    }
}

/// A value that is what it says, and nothing that Ansible would have to work out.
fn plain(what: &str, value: String) -> Result<String, String> {
    match value.contains("{{") {
        true => {
            Err(format!("{what} is a template, {value}, which only Ansible works out: write its value there"))
        }
        false => Ok(value),
    }
}

/// The machine at this place of the inventory; the master is at 0, and the first worker at 1.
fn machine(name: &str, at: usize, known: &Vars) -> Result<Machine, String> {
    if name.contains('[') {
        return Err(format!("{name} stands for several hosts, which have to be listed one by one"));
    }
    let is_master = at == 0;
    let get = |key: &str| known.get(key).filter(|value| !value.is_empty()).cloned();
    let number = |key: &str| {
        get(key).map(|text| text.parse::<usize>().map_err(|_| format!("{key} of {name} is no number")))
    };
    let plain_or_none =
        |key: &str| get(key).map(|value| plain(&format!("{key} of {name}"), value)).transpose();
    let port = get("ansible_port")
        .map(|text| text.parse().map_err(|_| format!("ansible_port of {name} is no port")));
    let gpus = number("gpus").transpose()?.unwrap_or(0);
    let address = plain_or_none("ansible_host")?.unwrap_or_else(|| name.to_owned());
    let options = ["ansible_ssh_common_args", "ansible_ssh_extra_args"].iter().filter_map(|key| get(key));
    let options = options
        .map(|text| shlex::split(&text).ok_or(format!("the ssh options of {name} are not quoted well")));
    let options: Vec<Vec<String>> = options.collect::<Result<_, String>>()?;
    let is_here = get("ansible_connection").is_some_and(|connection| connection != "ssh");
    let way = match is_here {
        true => Way::Here,
        false => Way::Ssh {
            address: address.clone(),
            user: plain_or_none("ansible_user")?,
            port: port.transpose()?,
            key: plain_or_none("ansible_ssh_private_key_file")?,
            options: options.concat(),
        },
    };
    // One that only Ansible can work out leaves the machine its other names.
    let host = get("number").unwrap_or_else(|| usual_number(name, at).to_string());
    let usual = if is_master { "horovod_master" } else { "horovod_worker" };
    Ok(Machine {
        name: name.to_owned(),
        alias: format!("host{host}"),
        is_master,
        private_address: get("private_address").unwrap_or(address),
        container: get("container").unwrap_or_else(|| usual.to_owned()),
        slots: number("slots").transpose()?.unwrap_or(gpus).max(1),
        way,
    })
}

/// The number of a machine whose inventory gives it none, as the role `member` has it: from a name that ends in
/// `-worker-N`, so that no worker is renamed when another one leaves, or from its place.
fn usual_number(name: &str, at: usize) -> usize {
    let worker = name.rsplit_once("-worker-").and_then(|(_, number)| number.parse().ok());
    if at == 0 { 1 } else { worker.unwrap_or(at).saturating_add(1) }
}

fn vars(node: Option<&Yaml<'_>>) -> Vars {
    let pairs = node.and_then(Yaml::as_mapping).into_iter().flatten();
    pairs.filter_map(|(name, value)| Some((name.as_str()?.to_owned(), text(value)?))).collect()
}

/// A value as text; lists and maps have none.
fn text(value: &Yaml<'_>) -> Option<String> {
    match value {
        Yaml::Value(Scalar::String(text)) => Some(text.to_string()),
        Yaml::Value(Scalar::Integer(number)) => Some(number.to_string()),
        Yaml::Value(Scalar::Boolean(is)) => Some(is.to_string()),
        Yaml::Value(Scalar::FloatingPoint(number)) => Some(number.to_string()),
        Yaml::Representation(text, ..) => Some(text.to_string()),
        _ => None,
    }
}

fn number_at_end(name: &str) -> Option<u64> {
    let digits = name.rfind(|letter: char| !letter.is_ascii_digit()).map_or(0, |at| at + 1);
    name[digits..].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const INVENTORY: &str = r#"
all:
  vars: {cluster_name: ronde, ansible_user: debian, public_address: 203.0.113.7, image: ""}
  children:
    master:  {hosts: {ronde-master: {ansible_host: 203.0.113.7, private_address: 10.0.0.10, gpus: 0}}}
    workers:
      hosts:
        "ronde-worker-1": {ansible_host: 10.0.0.11, gpus: 2, ansible_ssh_common_args: "-o ProxyJump=debian@203.0.113.7"}
        "ronde-worker-10": {ansible_host: 10.0.0.20, ansible_port: 2222, ansible_user: ubuntu}
        "ronde-worker-2": {ansible_host: 10.0.0.12}
"#;

    #[test]
    fn machines_come_in_the_order_of_their_numbers_with_their_own_ways() {
        let cluster = Cluster::read(INVENTORY).expect("it reads");
        assert_eq!(cluster.hosts(), "ronde-master:1,ronde-worker-1:2,ronde-worker-2:1,ronde-worker-10:1");
        assert_eq!((cluster.slots(), cluster.jupyter().as_str()), (5, "https://203.0.113.7:8888/lab"));
        let Way::Ssh { user, options, .. } = &cluster.machines[1].way else { panic!("by ssh") };
        assert_eq!(options, &["-o", "ProxyJump=debian@203.0.113.7"]);
        assert_eq!(user.as_deref(), Some("debian"));
        let Way::Ssh { user, port, .. } = &cluster.machines[3].way else { panic!("by ssh") };
        assert_eq!((user.as_deref(), *port), (Some("ubuntu"), Some(2222)));
        assert_eq!(cluster.master().container, "horovod_master");
        assert_eq!(cluster.machines[2].container, "horovod_worker");
    }

    #[test]
    fn machines_are_known_by_their_short_names_too() {
        let cluster = Cluster::read(INVENTORY).expect("it reads");
        for name in ["ronde-worker-2", "worker-2"] {
            assert_eq!(cluster.machine(name).map(|machine| machine.name.as_str()), Some("ronde-worker-2"));
        }
        assert_eq!(cluster.machine("worker-3"), None);
    }

    #[test]
    fn machines_are_known_by_the_names_that_containers_have_for_them() {
        let named = |text: &str, name: &str| {
            let cluster = Cluster::read(text).expect("it reads");
            cluster.machine(name).map(|machine| machine.name.clone())
        };
        for (name, expected) in [
            ("host1", Some("ronde-master")),
            ("host2", Some("ronde-worker-1")),
            ("host11", Some("ronde-worker-10")),
            ("host4", None),
        ] {
            assert_eq!(named(INVENTORY, name).as_deref(), expected, "{name}");
        }
        let own =
            "all: {children: {master: {hosts: {m: {}}}, workers: {hosts: {b: {}, a: {}, c: {number: 9}}}}}";
        for (name, expected) in [("host2", "b"), ("host3", "a"), ("host9", "c")] {
            assert_eq!(named(own, name).as_deref(), Some(expected), "{name}");
        }
        // A machine's own name counts more.
        let odd = "all: {children: {master: {hosts: {m: {}}}, workers: {hosts: {x: {}, host2: {}}}}}";
        assert_eq!(named(odd, "host2").as_deref(), Some("host2"));
    }

    #[test]
    fn containers_of_this_machine_need_no_ssh() {
        let text = "all:\n  children:\n    master:\n      hosts:\n        host1:\n          ansible_connection: local\n          container: ronde-master\n";
        let cluster = Cluster::read(text).expect("it reads");
        assert_eq!(cluster.master().way, Way::Here);
        assert_eq!(cluster.master().container, "ronde-master");
        assert_eq!(cluster.public_address, "localhost");
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for (text, words) in [
            ("a: [", "no inventory in YAML"),
            ("[master]\nm ansible_host=10.0.0.1\n[workers]\nw[1:3]\n", "no inventory in YAML"),
            ("", "no inventory in YAML"),
            ("hosts: {}", "exactly one host"),
            ("all: {children: {workers: {hosts: {a: {}}}}}", "exactly one host"),
            ("all: {children: {master: {hosts: {a: {gpus: many}}}}}", "no number"),
            ("master: {hosts: {m: {}}}\nworkers: {hosts: {'w[1:3]': {}}}", "one by one"),
            ("master: {hosts: {m: {ansible_host: '{{ address }}'}}}", "ansible_host of m is a template"),
            ("all: {vars: {ssh_port: none}, children: {master: {hosts: {m: {}}}}}", "ssh_port is no port"),
            (
                "all: {vars: {share_mount: /data}, children: {master: {hosts: {m: {}}}}}",
                "share_mount is /data",
            ),
        ] {
            let problem = Cluster::read(text).expect_err(text);
            assert!(problem.contains(words), "{text}: {problem}");
        }
    }

    #[test]
    fn groups_may_stand_on_their_own_and_hosts_be_described_elsewhere() {
        let text = "all: {vars: {ansible_user: anna}, hosts: {m: {ansible_host: a, ssh_port: 2200}}}\n\
                    master: {hosts: {m: }, vars: {public_address: b, share_mount: /mnt/share}}\n\
                    workers: {hosts: {w: {ansible_user: bert}}}";
        let cluster = Cluster::read(text).expect("it reads");
        assert_eq!((cluster.public_address.as_str(), cluster.ssh_port), ("b", 2200));
        let Way::Ssh { address, user, .. } = &cluster.master().way else { panic!("by ssh") };
        assert_eq!((address.as_str(), user.as_deref()), ("a", Some("anna")));
        assert_eq!(cluster.hosts(), "m:1,w:1");
        assert_eq!(Cluster::read(INVENTORY).expect("it reads").ssh_port, 12345);
    }
}
