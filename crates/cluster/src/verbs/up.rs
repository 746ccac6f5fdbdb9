//! `ronde cluster plan`, `up` and `scale`: from files to a cluster.

use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::args::{PlanArgs, ProgramArgs, ScaleArgs, UpArgs};
use crate::error::Error;
use crate::folder::{Containers, Folder, Kind, Noted, RESOURCES, USUAL, machines};
use crate::inventory::Cluster;
use crate::playbook;
use crate::process::Watcher;
use crate::screen::Screen;
use crate::terraform::command::{Plan, Terraform, Wish};
use crate::terraform::event::Action;
use crate::terraform::progress::{Planned, Progress, runs_ansible};
use crate::verbs::mend::{lost_to_terraform, mend};
use crate::verbs::{image, init, option_for};
use crate::words::{count, span};

pub(crate) fn plan(args: &PlanArgs) -> Result<(), Error> {
    let folder = Folder::find(args.folder.folder.as_deref())?;
    let option = option_for(&folder);
    check_cloud(&folder, |_| {
        format!("there is nothing to plan: ronde cluster up{option} changes only what is not as it should be")
    })?;
    let watcher = Watcher::new()?;
    let terraform = Terraform::new(args.programs.terraform.as_deref(), &folder, &watcher, &option)?;
    let mut screen = Screen::new();
    terraform.init(&mut screen)?;
    let (_plan, progress) = terraform.plan(&mut screen, Wish::Make, &[])?;
    let mut text: String = planned(&progress).map(|line| format!("{line}\n")).collect();
    text.push_str(&match progress.planned().count() {
        0 => "all is as it should be\n".to_owned(),
        number => format!("{}; nothing was done yet: ronde cluster up{option}\n", count(number, "change")),
    });
    let _ = std::io::stdout().write_all(text.as_bytes());
    Ok(())
}

pub(crate) fn up(args: &UpArgs) -> Result<(), Error> {
    let named = args.folder.folder.as_deref();
    let watcher = Watcher::new()?;
    if args.local.is_none() && args.inventory.is_none() {
        let folder = Folder::find(named)?;
        // A cluster that is not a cloud's is brought up again in its own way.
        return match folder.kind()? {
            Kind::Cloud => {
                check_containers(&folder, args)?;
                in_cloud(&folder, &watcher, &args.programs, args.yes)
            }
            kind => by_playbook(&folder, &watcher, args, kind),
        };
    }
    let kind = match (&args.local, &args.inventory) {
        (Some(machines), _) => Kind::Local { machines: usize::from(*machines) },
        (None, Some(file)) => {
            Kind::Inventory { file: file.canonicalize().map_err(Error::file("find", file))? }
        }
        (None, None) => Kind::Cloud,
    };
    check_inventory(&kind)?;
    let folder = match Folder::find(named) {
        Err(Error::NoFolder { .. }) => {
            let path = named.unwrap_or(Path::new(USUAL));
            check_empty(path)?;
            init::write(path, &init::pack(args.wheel.as_deref())?)?
        }
        found => found?,
    };
    check_change(&folder, &kind)?;
    by_playbook(&folder, &watcher, args, kind)
}

/// Refuses an inventory that only Ansible can read, before it is at work for many minutes.
fn check_inventory(kind: &Kind) -> Result<(), Error> {
    match kind {
        Kind::Inventory { file } => machines(file).map(|_| ()),
        Kind::Cloud | Kind::Local { .. } => Ok(()),
    }
}

/// Refuses to write over files of somebody else's.
fn check_empty(path: &Path) -> Result<(), Error> {
    match init::others(path) {
        None => Ok(()),
        Some(name) => Err(Error::Usage {
            what: format!("{} is no cluster folder, and has a file {name} of its own", path.display()),
            fix: "take another folder: --folder DIR; it is made if it is not there".to_owned(),
        }),
    }
}

/// Refuses to say what the containers of a cluster in a cloud are anywhere but where it is read.
fn check_containers(folder: &Folder, args: &UpArgs) -> Result<(), Error> {
    let image = args.image.as_deref().map(|given| format!("image = {:?}", image(given)));
    let framework = args.framework.map(|framework| format!("framework = {:?}", framework.name()));
    let lines: Vec<String> = image.into_iter().chain(framework).collect();
    if lines.is_empty() {
        return Ok(());
    }
    Err(Error::Usage {
        what: "--image and --framework are for clusters that are not in a cloud".to_owned(),
        fix: format!(
            "write {} into {}, then: ronde cluster up{}",
            lines.join(" and "),
            folder.file(RESOURCES).display(),
            option_for(folder)
        ),
    })
}

/// Refuses to forget a cluster that is up, of which a folder has one.
fn check_change(folder: &Folder, wanted: &Kind) -> Result<(), Error> {
    let now = folder.kind()?;
    let has = match &now {
        _ if folder.has_cloud()? => "a cluster in a cloud",
        _ if folder.was_cut_short()? => return Err(unasked(folder)),
        Kind::Cloud => return Ok(()),
        now if now.becomes(wanted) => return Ok(()),
        Kind::Local { .. } => "a cluster of containers on this machine",
        Kind::Inventory { .. } => "a cluster on the machines of an inventory",
    };
    let option = option_for(folder);
    Err(Error::Usage {
        what: format!("{} has {has} already", folder.path().display()),
        fix: format!("take another folder: --folder DIR; or take it down first: ronde cluster down{option}"),
    })
}

/// A folder that has nothing, but whose cloud may.
fn unasked(folder: &Folder) -> Error {
    Error::Usage {
        what: format!(
            "a run in {} was cut short and may have left something in the cloud, which has not been asked since",
            folder.path().display()
        ),
        fix: format!(
            "take another folder: --folder DIR; or have it asked: pip install openstacksdk, then: ronde cluster down{}",
            option_for(folder)
        ),
    }
}

pub(crate) fn scale(args: &ScaleArgs) -> Result<(), Error> {
    let folder = Folder::find(args.folder.folder.as_deref())?;
    let option = option_for(&folder);
    check_cloud(&folder, |kind| match kind {
        Kind::Inventory { file } => {
            format!("list them in {}, then: ronde cluster up{option}", file.display())
        }
        _ => format!("ronde cluster up --local {}{option}", args.workers.saturating_add(1)),
    })?;
    let started = Instant::now();
    let watcher = Watcher::new()?;
    let terraform = Terraform::new(args.programs.terraform.as_deref(), &folder, &watcher, &option)?;
    let mut variables = folder.variables(RESOURCES)?;
    let text = variables.text();
    let before = variables.number("horovod_worker_node", "count").unwrap_or(1);
    if before != args.workers {
        variables.set("horovod_worker_node.count", args.workers);
        folder.write(RESOURCES, variables.text().as_bytes(), 0o644)?;
    }
    let mut screen = Screen::new();
    screen.say(&[format!("workers: {before} → {} ({RESOURCES})", args.workers)]);
    // Whoever asks for fewer workers wants the others deleted.
    let is_agreed = |change: &Planned| is_worker_to_go(change, args.workers);
    let plan = agreed_plan(&terraform, &folder, &watcher, &mut screen, &args.programs, args.yes, is_agreed);
    if plan.is_err() && before != args.workers {
        // Otherwise the next run would do what was just refused.
        folder.write(RESOURCES, text.as_bytes(), 0o644)?;
    }
    make(&terraform, &folder, screen, &plan?, started)
}

/// Refuses what Terraform does where it has no part in the cluster; `fix` says what to do instead.
fn check_cloud(folder: &Folder, fix: impl FnOnce(&Kind) -> String) -> Result<(), Error> {
    let kind = folder.kind()?;
    let what = match &kind {
        Kind::Cloud => return Ok(()),
        Kind::Local { .. } => "this cluster is made of containers on this machine",
        Kind::Inventory { .. } => "the machines of this cluster are those of an inventory",
    };
    Err(Error::Usage { what: what.to_owned(), fix: fix(&kind) })
}

/// Whether a worker goes since there are to be fewer.
fn is_worker_to_go(change: &Planned, workers: u64) -> bool {
    let name = change.address.split_once('.').map_or("", |(_, name)| name);
    let index = name.strip_prefix("worker[").and_then(|rest| rest.strip_suffix(']'));
    let index = index.and_then(|index| index.parse::<u64>().ok());
    change.action == Action::Delete && index.is_some_and(|index| index >= workers)
}

/// Makes a cluster with Terraform.
fn in_cloud(folder: &Folder, watcher: &Watcher, programs: &ProgramArgs, yes: bool) -> Result<(), Error> {
    let started = Instant::now();
    let terraform = Terraform::new(programs.terraform.as_deref(), folder, watcher, &option_for(folder))?;
    let mut screen = Screen::new();
    let plan = agreed_plan(&terraform, folder, watcher, &mut screen, programs, yes, |_| false)?;
    make(&terraform, folder, screen, &plan, started)
}

/// Plans, and asks if something would be lost. `is_agreed` says of a change that nobody has to be asked about it.
fn agreed_plan(
    terraform: &Terraform<'_>,
    folder: &Folder,
    watcher: &Watcher,
    screen: &mut Screen,
    programs: &ProgramArgs,
    yes: bool,
    is_agreed: impl Fn(&Planned) -> bool,
) -> Result<Plan, Error> {
    let mut options = ansible(folder, programs)?;
    terraform.init(screen)?;
    if terraform.was_cut_short()?
        && let Some(why) = mend(terraform, watcher, screen, yes)?
    {
        screen.say(&[lost_to_terraform(&why)]);
    }
    options.extend(again(&terraform.resources()?));
    let (plan, planned_run) = terraform.plan(screen, Wish::Make, &options)?;
    let lost: Vec<&Planned> =
        planned_run.planned().filter(|change| is_loss(change) && !is_agreed(change)).collect();
    if !lost.is_empty() && !yes {
        screen.say(&lost.iter().map(|change| line(change)).collect::<Vec<_>>());
        let what = format!("{} would be deleted or replaced", count(lost.len(), "thing"));
        agree(watcher, &what)?;
    }
    let changes = planned_run.planned().count();
    screen.say(&[format!("  ✓ terraform plan  {}", count(changes, "change"))]);
    Ok(plan)
}

/// What has Terraform run Ansible also if nothing has changed in the files: something may have on the machines, which
/// Terraform does not see.
fn again(resources: &[String]) -> Option<String> {
    resources.iter().find(|address| runs_ansible(address)).map(|address| format!("-replace={address}"))
}

/// Does what is planned, and says what comes next.
fn make(
    terraform: &Terraform<'_>,
    folder: &Folder,
    mut screen: Screen,
    plan: &Plan,
    started: Instant,
) -> Result<(), Error> {
    terraform.apply(&mut screen, plan)?;
    drop(screen);
    folder.note(&Noted::default())?;
    let cluster = folder.cluster()?;
    finish(&cluster, folder, started.elapsed())
}

/// Whether something with contents goes. What only runs scripts (`terraform_data`) has none.
fn is_loss(change: &Planned) -> bool {
    matches!(change.action, Action::Delete | Action::Replace)
        && !change.address.starts_with("terraform_data.")
}

/// Asks; an error if it is not agreed to, or if there is nobody to ask.
pub(crate) fn agree(watcher: &Watcher, what: &str) -> Result<(), Error> {
    let answer = watcher.ask(&format!("{what}. Go on? [y/N] "))?;
    match answer.as_deref().map(str::to_lowercase).as_deref() {
        Some("y" | "yes") => Ok(()),
        Some(_) => Err(Error::NotConfirmed { what: "nothing was changed".to_owned(), fix: String::new() }),
        None => Err(Error::NotConfirmed { what: what.to_owned(), fix: "if that is meant: --yes".to_owned() }),
    }
}

/// Sees to it that Ansible is there before machines are; returns what Terraform has to be told.
fn ansible(folder: &Folder, programs: &ProgramArgs) -> Result<Vec<String>, Error> {
    let variables = folder.variables(RESOURCES)?;
    if variables.is_off("configure") {
        return Ok(Vec::new());
    }
    let set = variables.string("ansible_playbook").map(Path::new);
    let program = playbook::program(programs.ansible.as_deref().or(set))?;
    Ok(match programs.ansible {
        Some(_) => vec![format!("-var=ansible_playbook={}", program.display())],
        None => Vec::new(),
    })
}

/// Makes a cluster of machines that are there, or of containers of this one.
fn by_playbook(folder: &Folder, watcher: &Watcher, args: &UpArgs, kind: Kind) -> Result<(), Error> {
    let started = Instant::now();
    check_inventory(&kind)?;
    let program = playbook::program(args.programs.ansible.as_deref())?;
    let said = Containers {
        image: args.image.as_deref().map(image),
        framework: args.framework.map(|framework| framework.name().to_owned()),
    };
    let noted = Noted { kind, containers: said.or(folder.noted()?.containers) };
    // First, so that an interrupted run is cleaned up in the right way.
    folder.note(&noted)?;
    let mut variables = json!({ "image_context": folder.image_context() });
    if let Some(image) = &noted.containers.image {
        variables["image"] = json!(image);
    }
    if let Some(framework) = &noted.containers.framework {
        variables["framework"] = json!(framework);
    }
    let words = match &noted.kind {
        Kind::Local { machines } => local(folder, variables, *machines, "present"),
        _ => {
            let inventory = folder.inventory()?.display().to_string();
            ["-i", &inventory, "ansible/site.yml", "-e", &variables.to_string()].map(str::to_owned).to_vec()
        }
    };
    let option = option_for(folder);
    let after =
        format!("`ronde cluster up{option}` goes on from here, `ronde cluster down{option}` takes it down");
    let mut screen = Screen::new();
    playbook::play(&program, folder, watcher, &mut screen, &words, &after)?;
    drop(screen);
    finish(&folder.cluster()?, folder, started.elapsed())
}

/// The words for the playbook of clusters on this machine.
pub(crate) fn local(
    folder: &Folder,
    mut variables: serde_json::Value,
    machines: usize,
    state: &str,
) -> Vec<String> {
    variables["local_machines"] = json!(machines);
    variables["local_state"] = json!(state);
    variables["local_inventory"] = json!(folder.file("inventory.yaml"));
    ["ansible/local.yml", "-e", &variables.to_string()].map(str::to_owned).to_vec()
}

/// What is planned, a line each.
pub(crate) fn planned(progress: &Progress) -> impl Iterator<Item = String> {
    progress.planned().map(line)
}

fn line(change: &Planned) -> String {
    format!("  {:<8} {}", change.action.planned(), change.address)
}

/// What to do next.
fn finish(cluster: &Cluster, folder: &Folder, took: Duration) -> Result<(), Error> {
    let _ = std::io::stdout().write_all(next(cluster, &option_for(folder), took).as_bytes());
    Ok(())
}

fn next(cluster: &Cluster, option: &str, took: Duration) -> String {
    let workers = count(cluster.machines.len() - 1, "worker");
    let (slots, hosts, port) = (cluster.slots(), cluster.hosts(), cluster.ssh_port);
    // It needs no framework, so that it runs in whatever image the cluster has.
    let example = "python /examples/digits.py";
    format!(
        "the cluster {} is up: a master and {workers}, in {}\n\
         \x20 JupyterLab    {}\n\
         \x20 its token     ronde cluster jupyter --token{option}\n\
         \x20 train         ronde cluster run{option} -- {example}\n\
         \x20 from there    ronde run -np {slots} -H {hosts} -p {port} {example}\n\
         \x20 look at it    ronde cluster status{option}\n\
         \x20 delete it     ronde cluster down{option}\n",
        cluster.name,
        span(took),
        cluster.jupyter(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_ends_with_what_to_do_next() {
        let text = "all: {vars: {public_address: 203.0.113.7}, children: {master: {hosts: {m: {}}}, workers: {hosts: {w: {gpus: 2}}}}}";
        let cluster = Cluster::read(text).expect("it reads");
        let text = next(&cluster, " --folder /c", Duration::from_secs(72));
        for words in [
            "the cluster ronde is up: a master and 1 worker, in 1 m 12 s\n",
            "  JupyterLab    https://203.0.113.7:8888/lab\n",
            "ronde cluster jupyter --token --folder /c\n",
            "ronde run -np 3 -H m:1,w:2 -p 12345 python",
            "ronde cluster down --folder /c\n",
        ] {
            assert!(text.contains(words), "{words:?} not in {text}");
        }
    }

    #[test]
    fn only_workers_above_the_new_number_go_without_a_question() {
        let change = |address: &str, action| Planned { address: address.to_owned(), action };
        for (address, action, expected) in [
            ("openstack_compute_instance_v2.worker[2]", Action::Delete, true),
            ("openstack_networking_port_v2.worker[10]", Action::Delete, true),
            ("openstack_compute_instance_v2.worker[1]", Action::Delete, false),
            ("openstack_compute_instance_v2.worker[2]", Action::Replace, false),
            ("openstack_compute_instance_v2.worker_group[2]", Action::Delete, false),
            ("openstack_compute_instance_v2.master", Action::Delete, false),
        ] {
            assert_eq!(is_worker_to_go(&change(address, action), 2), expected, "{address} {action:?}");
        }
    }

    #[test]
    fn ansible_runs_again_where_it_has_run() {
        let resources = ["openstack_compute_instance_v2.master", "terraform_data.configure[0]"];
        let resources = resources.map(str::to_owned);
        assert_eq!(again(&resources).as_deref(), Some("-replace=terraform_data.configure[0]"));
        assert_eq!(again(&resources[..1]), None);
    }

    #[test]
    fn scripts_that_run_again_are_no_loss() {
        let change = |address: &str, action| Planned { address: address.to_owned(), action };
        assert!(!is_loss(&change("terraform_data.configure[0]", Action::Replace)));
        assert!(!is_loss(&change("openstack_compute_instance_v2.worker[2]", Action::Create)));
        assert!(is_loss(&change("openstack_compute_instance_v2.master", Action::Replace)));
    }
}
