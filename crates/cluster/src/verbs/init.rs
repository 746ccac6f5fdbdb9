//! `ronde cluster init`: writes the files of a cluster folder and fills in what is known or answered.

mod key;

use std::fs;
use std::io::{ErrorKind, Write, stdin};
use std::path::Path;
use std::sync::Arc;

use rustix::termios::isatty;
use signal_hook::consts::SIGINT;
use zeroize::Zeroizing;

use crate::args::InitArgs;
use crate::embedded;
use crate::error::Error;
use crate::folder::{Folder, RESOURCES, USUAL};
use crate::variables::Variables;
use crate::verbs::{image, option_for, whole};
use crate::wheel;

const LOGIN: &str = "auth_data.auto.tfvars";
/// What users have filled in is never written over.
const THEIRS: [&str; 2] = [RESOURCES, LOGIN];

pub(crate) fn init(mut args: InitArgs) -> Result<(), Error> {
    let path = args.folder.clone().unwrap_or_else(|| USUAL.into());
    let is_there = fs::read_dir(&path).is_ok_and(|mut entries| entries.next().is_some());
    if is_there && !args.force {
        return Err(Error::Exists { path });
    }
    // Before anything is asked or written.
    let packed = pack(args.wheel.as_deref())?;
    let is_kept = path.join(RESOURCES).is_file();
    if !is_kept && isatty(stdin()) {
        ask(&mut args)?;
    }
    let secret = if is_kept { None } else { secret(&args)? };
    let guesses = if is_kept { String::new() } else { guess(&mut args, std::env::home_dir().as_deref()) };
    let folder = write(&path, &packed)?;
    let mut lacks = Vec::new();
    if !is_kept {
        let (resources, login) = filled(&args, secret.as_ref().map(|secret| secret.as_str()))?;
        lacks = placeholders(&resources, &login);
        folder.write(RESOURCES, resources.as_bytes(), 0o644)?;
        folder.write(LOGIN, login.as_bytes(), 0o600)?;
    }
    let option = option_for(&folder);
    let mut text = format!("{} is written\n", folder.path().display());
    if is_kept {
        text.push_str(&format!("{RESOURCES} and {LOGIN} are as they were\n"));
    } else if let Some(line) = left_out(&args) {
        text.push_str(&line);
    }
    text.push_str(&guesses);
    for (file, name) in lacks {
        text.push_str(&format!("  still to fill in: {name} in {file}\n"));
    }
    text.push_str(&format!(
        "next: ronde cluster up{option} (or, to look first: ronde cluster plan{option})\n"
    ));
    let _ = std::io::stdout().write_all(text.as_bytes());
    Ok(())
}

/// The wheel for the image: the one that is named, or the installed package.
pub(crate) fn pack(named: Option<&Path>) -> Result<wheel::Wheel, Error> {
    named.map_or_else(wheel::installed, wheel::named)
}

/// Writes all files of a cluster folder, with the wheel, but for those that are the user's.
pub(crate) fn write(path: &Path, packed: &wheel::Wheel) -> Result<Folder, Error> {
    fs::create_dir_all(path).map_err(Error::file("make", path))?;
    let folder = Folder::at(path)?;
    for (name, is_program, contents) in embedded::FILES {
        if THEIRS.contains(name) && folder.file(name).is_file() {
            continue;
        }
        let mode = match (*name, is_program) {
            (LOGIN, _) => 0o600,
            (_, true) => 0o755,
            (_, false) => 0o644,
        };
        folder.write(name, contents, mode)?;
    }
    // One wheel only: the image takes whatever lies there.
    let wheels = folder.file("image/dist");
    let _ = fs::remove_dir_all(&wheels);
    folder.write(&format!("image/dist/{}", packed.name), &packed.contents, 0o644)?;
    Ok(folder)
}

/// A file of somebody else's that would be written over in a folder.
pub(crate) fn others(path: &Path) -> Option<&'static str> {
    let is_other = |name: &str, contents: &[u8]| match fs::read(path.join(name)) {
        Ok(there) => !THEIRS.contains(&name) && there != contents,
        Err(error) => error.kind() == ErrorKind::IsADirectory,
    };
    embedded::FILES.iter().find(|(name, _, contents)| is_other(name, contents)).map(|(name, ..)| *name)
}

/// Asks for what is not given. Whatever is not answered is left to be filled in.
fn ask(args: &mut InitArgs) -> Result<(), Error> {
    if args.cloud.is_none() && args.auth_url.is_none() {
        args.cloud = answer("entry of clouds.yaml to log in with (none: by address and password)")?;
    }
    if args.cloud.is_none() {
        let questions: [(&mut Option<String>, &str); 2] = [
            (&mut args.auth_url, "address of the cloud's Keystone, as in https://cloud.example:5000/v3"),
            (&mut args.project, "project"),
        ];
        for (place, question) in questions {
            fill(place, question)?;
        }
        if args.application_credential.is_none() {
            fill(&mut args.user, "user")?;
        }
    }
    let questions: [(&mut Option<String>, &str); 3] = [
        (&mut args.flavor, "flavour of the machines (openstack flavor list)"),
        (&mut args.os_image, "system image of the machines (openstack image list)"),
        (
            &mut args.admin_cidr,
            "your address as the cloud sees it, as in 203.0.113.7/32: ssh and JupyterLab are for it only",
        ),
    ];
    for (place, question) in questions {
        fill(place, question)?;
    }
    while args.workers.is_none() {
        let Some(text) = answer("how many workers (1)")? else { break };
        match text.parse() {
            Ok(count) => args.workers = Some(count),
            Err(_) => say(&format!("{text} is no number\n")),
        }
    }
    Ok(())
}

/// Takes what can be told from elsewhere, and says what that is, a line each.
fn guess(args: &mut InitArgs, home: Option<&Path>) -> String {
    let mut lines = String::new();
    if args.ssh_user.is_none() {
        args.ssh_user = args.os_image.as_deref().and_then(usual_user).map(str::to_owned);
        if let Some(user) = &args.ssh_user {
            lines.push_str(&format!("  the user to log in as is taken to be {user} (else: --ssh-user)\n"));
        }
    }
    if args.key.is_none() {
        args.key = key::of_agent(home);
        if let Some(key) = &args.key {
            let called = key::called(key);
            lines.push_str(&format!(
                "  the key that lets you in is the first of your ssh agent, {called} (else: --key)\n"
            ));
        }
    }
    lines
}

/// Who an image lets in, where its name says that it is not the user that is taken otherwise.
fn usual_user(os_image: &str) -> Option<&'static str> {
    os_image.to_lowercase().contains("ubuntu").then_some("ubuntu")
}

fn fill(place: &mut Option<String>, question: &str) -> Result<(), Error> {
    if place.is_none() {
        *place = answer(question)?;
    }
    Ok(())
}

fn answer(question: &str) -> Result<Option<String>, Error> {
    say(&format!("{question}: "));
    let mut line = String::new();
    stdin().read_line(&mut line).map_err(|source| Error::System { doing: "read an answer", source })?;
    let line = line.trim();
    Ok((!line.is_empty()).then(|| line.to_owned()))
}

fn say(text: &str) {
    let _ = std::io::stderr().write_all(text.as_bytes());
}

/// The password or secret that belongs to the login, if one is needed: from a file, the environment, or asked for.
fn secret(args: &InitArgs) -> Result<Option<Zeroizing<String>>, Error> {
    let (variable, whose) = match (&args.cloud, &args.application_credential, &args.user) {
        (Some(_), ..) | (None, None, None) => return Ok(None),
        (None, Some(id), _) => {
            ("OS_APPLICATION_CREDENTIAL_SECRET", format!("secret of application credential {id}"))
        }
        (None, None, Some(user)) => ("OS_PASSWORD", format!("password of {user}")),
    };
    if let Some(path) = &args.password_file {
        let text = fs::read_to_string(path).map_err(Error::file("read", path))?;
        return Ok(Some(Zeroizing::new(text.trim_end_matches(['\n', '\r']).to_owned())));
    }
    if let Ok(text) = std::env::var(variable) {
        return Ok(Some(Zeroizing::new(text)));
    }
    if !isatty(stdin()) {
        return Ok(None);
    }
    let text = hidden(&format!("{whose} (is not shown): "))?;
    Ok((!text.is_empty()).then(|| Zeroizing::new(text)))
}

/// Asks for something that nobody is to see.
fn hidden(question: &str) -> Result<String, Error> {
    let failed = |source| Error::System { doing: "read the password", source };
    // Ctrl-C comes as a signal before the terminal is set right again, and must not end us until then.
    let ignored = signal_hook::flag::register(SIGINT, Arc::default()).map_err(failed)?;
    let text = rpassword::prompt_password(question);
    signal_hook::low_level::unregister(ignored);
    text.map_err(|source| match source.kind() {
        ErrorKind::Interrupted => Error::Interrupted { signal: SIGINT, after: String::new() },
        _ => failed(source),
    })
}

/// What is said if something was given that an entry of clouds.yaml says as well, and more than it: Terraform's provider
/// takes only the region besides.
fn left_out(args: &InitArgs) -> Option<String> {
    let cloud = args.cloud.as_ref()?;
    let given = [
        ("--auth-url", args.auth_url.is_some()),
        ("--project", args.project.is_some()),
        ("--user-domain", args.user_domain.is_some()),
        ("--user", args.user.is_some()),
        ("--application-credential", args.application_credential.is_some()),
        ("--password-file", args.password_file.is_some()),
    ];
    let names: Vec<&str> =
        given.into_iter().filter(|(_, is_given)| *is_given).map(|(name, _)| name).collect();
    (!names.is_empty()).then(|| {
        format!(
            "  not written: {}, or the OS_* variables for it; the entry {cloud} of clouds.yaml says who you are, and where\n",
            names.join(", ")
        )
    })
}

/// Both variable files with what is known.
fn filled(args: &InitArgs, secret: Option<&str>) -> Result<(String, String), Error> {
    let template = |name: &str| {
        let text = embedded::text(name).unwrap_or_default();
        Variables::read(text).map_err(|problem| Error::Unreadable { path: name.into(), problem })
    };
    let (mut resources, mut login) = (template(RESOURCES)?, template(LOGIN)?);
    if let Some(cloud) = &args.cloud {
        let region = args.region.as_ref().map(|region| ("region", region.as_str()));
        let entry = [("cloud", cloud.as_str())].into_iter().chain(region).collect::<Vec<_>>();
        resources.set_object("openstack_provider", &entry);
        login.set_object("auth_data", &[]);
    } else if let Some(id) = &args.application_credential {
        let secret = secret.unwrap_or("YOUR_SECRET");
        login.set_object(
            "auth_data",
            &[("application_credential_id", id), ("application_credential_secret", secret)],
        );
    } else {
        for (name, value) in [("user_name", args.user.as_deref()), ("password", secret)] {
            if let Some(value) = value {
                login.set(&format!("auth_data.{name}"), value);
            }
        }
    }
    if args.cloud.is_none() {
        let values = [
            ("auth_url", &args.auth_url),
            ("project_name", &args.project),
            ("region", &args.region),
            ("user_domain_name", &args.user_domain),
        ];
        for (name, value) in values {
            if let Some(value) = value {
                resources.set(&format!("openstack_provider.{name}"), value.as_str());
            }
        }
    }
    // A key pair has no slashes in its name.
    let is_key = |key: &&String| key::is_text(key) || key.contains('/') || key.ends_with(".pub");
    // Terraform looks for a file in the cluster's folder, and knows what `~` is.
    let key = args.key.as_ref().map(|key| if key.starts_with('~') { key.clone() } else { whole(key, None) });
    let image = args.image.as_deref().map(image);
    let framework = args.framework.map(|framework| framework.name().to_owned());
    let worker_flavor = args.worker_flavor.as_ref().or(args.flavor.as_ref());
    let values = [
        ("horovod_master_node.flavor_name", args.flavor.as_ref()),
        ("horovod_worker_node.flavor_name", worker_flavor),
        ("horovod_master_node.image_name", args.os_image.as_ref()),
        ("horovod_master_node.public_ip", args.public_ip.as_ref()),
        ("horovod_master_node.public_key", key.as_ref().filter(is_key)),
        ("horovod_master_node.key_pair", key.as_ref().filter(|key| !is_key(key))),
        ("network.external_network", args.external_network.as_ref()),
        ("network.name", args.network.as_ref()),
        ("admin_cidr", args.admin_cidr.as_ref()),
        ("ssh_user", args.ssh_user.as_ref()),
        ("cluster_name", args.name.as_ref()),
        ("framework", framework.as_ref()),
        ("image", image.as_ref()),
    ];
    for (name, value) in values {
        if let Some(value) = value {
            resources.set(name, value.as_str());
        }
    }
    for (name, value) in
        [("horovod_worker_node.count", args.workers), ("horovod_master_node.volume_size", args.volume_size)]
    {
        if let Some(value) = value {
            resources.set(name, value);
        }
    }
    Ok((resources.text(), login.text()))
}

/// What still has a placeholder, as the name of the file and of the value.
fn placeholders(resources: &str, login: &str) -> Vec<(&'static str, String)> {
    let find = |file: &'static str, text: &str| {
        let mut object = String::new();
        let mut found = Vec::new();
        for line in text.lines().filter(|line| !line.trim_start().starts_with('#')) {
            let Some((name, value)) = line.split_once('=') else { continue };
            let name = name.trim();
            if !line.starts_with(' ') {
                object = format!("{name}.");
            }
            if value.contains("YOUR") {
                let within = if line.starts_with(' ') { object.as_str() } else { "" };
                found.push((file, format!("{within}{name}")));
            }
        }
        found
    };
    [find(RESOURCES, resources), find(LOGIN, login)].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known() -> InitArgs {
        InitArgs {
            auth_url: Some("https://k:5000/v3".to_owned()),
            project: Some("p".to_owned()),
            user: Some("anna".to_owned()),
            workers: Some(3),
            flavor: Some("m1.large".to_owned()),
            worker_flavor: Some("g1.large".to_owned()),
            os_image: Some("debian-12".to_owned()),
            key: Some("~/.ssh/id_ed25519.pub".to_owned()),
            admin_cidr: Some("203.0.113.7/32".to_owned()),
            ..InitArgs::default()
        }
    }

    #[test]
    fn what_is_given_stands_in_the_files_and_nothing_is_left_to_fill_in() {
        let (resources, login) = filled(&known(), Some("se\"cret")).expect("filled");
        assert_eq!(placeholders(&resources, &login), []);
        let read = Variables::read(&resources).expect("it reads");
        assert_eq!(read.number("horovod_worker_node", "count"), Some(3));
        assert_eq!(read.string("admin_cidr"), Some("203.0.113.7/32"));
        assert!(resources.contains("public_key = \"~/.ssh/id_ed25519.pub\""), "{resources}");
        assert!(login.contains(r#""se\"cret""#), "{login}");
    }

    #[test]
    fn what_is_not_given_is_named() {
        let (resources, login) = filled(&InitArgs::default(), None).expect("filled");
        let lacks: Vec<String> = placeholders(&resources, &login).into_iter().map(|(_, name)| name).collect();
        for name in [
            "openstack_provider.auth_url",
            "horovod_worker_node.flavor_name",
            "admin_cidr",
            "auth_data.password",
        ] {
            assert!(lacks.contains(&name.to_owned()), "{name} not in {lacks:?}");
        }
    }

    #[test]
    fn with_an_entry_of_clouds_yaml_no_login_is_written() {
        let args = InitArgs { cloud: Some("lab".to_owned()), ..known() };
        let (resources, login) = filled(&args, None).expect("filled");
        assert_eq!(placeholders(&resources, &login), []);
        assert!(!login.contains("anna") && !resources.contains("https://k"), "{login}{resources}");
        assert!(resources.contains("cloud = \"lab\""), "{resources}");
    }

    #[test]
    fn an_entry_of_clouds_yaml_takes_a_region_besides_and_what_it_does_not_take_is_named() {
        let args = InitArgs { cloud: Some("lab".to_owned()), region: Some("r2".to_owned()), ..known() };
        let (resources, _) = filled(&args, None).expect("filled");
        assert!(resources.contains("region = \"r2\"") && !resources.contains("RegionOne"), "{resources}");
        let line = left_out(&args).expect("something is left out");
        assert!(line.contains("not written: --auth-url, --project, --user,"), "{line}");
        assert!(line.contains("the entry lab of clouds.yaml"), "{line}");
        assert_eq!(left_out(&known()), None);
        let alone = InitArgs { cloud: Some("lab".to_owned()), ..InitArgs::default() };
        assert_eq!(left_out(&alone), None);
    }

    #[test]
    fn files_are_named_by_their_whole_paths() {
        let folder = std::env::temp_dir().canonicalize().expect("it is there");
        let file = folder.join(format!("ronde-init-{}.pub", std::process::id()));
        std::fs::write(&file, "").expect("a file");
        let detour = format!("{}/./{}", folder.display(), file.file_name().expect("a name").display());
        let args = InitArgs { image: Some(detour.clone()), key: Some(detour), ..known() };
        let (resources, _) = filled(&args, None).expect("filled");
        for name in ["image", "public_key"] {
            assert!(resources.contains(&format!("{name} = \"{}\"", file.display())), "{resources}");
        }
        std::fs::remove_file(file).expect("removed");
    }

    #[test]
    fn the_user_is_taken_from_the_image_unless_it_is_named() {
        let of = |os_image: &str, ssh_user: Option<&str>| {
            let (os_image, ssh_user) = (Some(os_image.to_owned()), ssh_user.map(str::to_owned));
            let mut args = InitArgs { os_image, ssh_user, ..known() };
            let said = guess(&mut args, None);
            (args.ssh_user, said.contains("ubuntu"))
        };
        assert_eq!(of("Ubuntu 24.04 LTS", None), (Some("ubuntu".to_owned()), true));
        assert_eq!(of("Ubuntu 24.04 LTS", Some("anna")), (Some("anna".to_owned()), false));
        assert_eq!(of("debian-12", None), (None, false));
    }

    #[test]
    fn the_name_of_a_key_pair_is_told_from_a_key() {
        let args = InitArgs { key: Some("anna".to_owned()), ..known() };
        let (resources, _) = filled(&args, None).expect("filled");
        assert!(
            resources.contains("key_pair = \"anna\"") && !resources.contains("public_key ="),
            "{resources}"
        );
        let key = "ssh-ed25519 AAAA anna".to_owned();
        let (resources, _) = filled(&InitArgs { key: Some(key), ..known() }, None).expect("filled");
        assert!(resources.contains("public_key = \"ssh-ed25519 AAAA anna\""), "{resources}");
    }
}
