//! A cluster folder: where it is, what it holds, and what kind of cluster was made from it.
//!
//! ```text
//! *.tf, *.auto.tfvars    what Terraform reads; terraform.tfstate is what it has made
//! ansible/               what prepares the machines
//! image/                 what the cluster's image is built from; in the repository, the repository itself
//! inventory.yaml         the machines, once there are some
//! known_hosts            their keys
//! .ronde/                what the last runs wrote, and the kind of cluster; readable by its owner only
//! ```

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::cause::machine::Place;
use crate::error::Error;
use crate::inventory::Cluster;
use crate::remote::quoted;
use crate::variables::Variables;

/// The folder that is made and looked for if none is named.
pub(crate) const USUAL: &str = "ronde-cluster";
/// The file in which users say what to make.
pub(crate) const RESOURCES: &str = "resources.auto.tfvars";
/// The file of this program's own that is there while Terraform changes something.
pub(crate) const APPLYING: &str = "applying";
/// By these files together a cluster folder is known: others have an `ansible/site.yml`, too.
const MARKS: [&str; 3] =
    ["ansible/site.yml", "ansible/remove.yml", "ansible/roles/members/templates/hostfile.j2"];

/// What kind of cluster a folder has.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", tag = "kind")]
pub(crate) enum Kind {
    /// Terraform makes its machines.
    #[default]
    Cloud,
    /// They were there.
    Inventory { file: PathBuf },
    /// Containers of this machine.
    Local { machines: usize },
}

/// What the containers of a cluster that is not a cloud's are, as far as the command line has said.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Containers {
    /// A name or an archive; empty if it is to be built.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) image: Option<String>,
    /// What it is built with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) framework: Option<String>,
}

impl Containers {
    /// What is said now counts more than what was said before. A framework is for an image that is built.
    pub(crate) fn or(self, before: Containers) -> Containers {
        let image = if self.framework.is_some() { self.image } else { self.image.or(before.image) };
        Containers { image, framework: self.framework.or(before.framework) }
    }

    /// The words of a command line that say so, each with a space in front.
    fn words(&self) -> String {
        let word = |option: &str, value: &Option<String>| match value {
            Some(value) => format!(" {option} {}", quoted(std::slice::from_ref(value))),
            None => String::new(),
        };
        format!("{}{}", word("--image", &self.image), word("--framework", &self.framework))
    }
}

/// What a folder remembers of its cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Noted {
    #[serde(flatten)]
    pub(crate) kind: Kind,
    #[serde(flatten)]
    pub(crate) containers: Containers,
}

impl Noted {
    /// What brings such a cluster up in a folder that has none.
    pub(crate) fn up(&self) -> String {
        let words = self.containers.words();
        match &self.kind {
            Kind::Cloud => "ronde cluster up".to_owned(),
            Kind::Inventory { file } => {
                format!("ronde cluster up --inventory {}{words}", quoted(&[file.display().to_string()]))
            }
            Kind::Local { machines } => format!("ronde cluster up --local {machines}{words}"),
        }
    }
}

impl Kind {
    /// Whose its machines are.
    pub(crate) fn place(&self) -> Place {
        match self {
            Kind::Cloud => Place::Cloud,
            Kind::Inventory { .. } | Kind::Local { .. } => Place::Given,
        }
    }

    /// Whether a cluster of this kind can become the other by `up`, or must be taken down first.
    pub(crate) fn becomes(&self, other: &Kind) -> bool {
        match (self, other) {
            (Kind::Local { .. }, Kind::Local { .. }) => true,
            (one, other) => one == other,
        }
    }
}

/// A cluster folder.
#[derive(Clone, Debug)]
pub(crate) struct Folder {
    path: PathBuf,
}

impl Folder {
    /// The one that is named, or the one we are in, or the one of the usual name.
    pub(crate) fn find(named: Option<&Path>) -> Result<Folder, Error> {
        let candidates = match named {
            Some(path) => vec![path],
            None => vec![Path::new("."), Path::new(USUAL)],
        };
        let found = candidates.iter().find(|path| MARKS.iter().all(|mark| path.join(mark).is_file()));
        match found {
            Some(path) => Folder::at(path),
            None => Err(Error::NoFolder { path: named.unwrap_or(Path::new(USUAL)).to_owned() }),
        }
    }

    /// The one at this place, which is there.
    pub(crate) fn at(path: &Path) -> Result<Folder, Error> {
        let path = path.canonicalize().map_err(Error::file("find", path))?;
        Ok(Folder { path })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// A file in it.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// A file that is this program's own; its folder is made.
    pub(crate) fn own(&self, name: &str) -> Result<PathBuf, Error> {
        let folder = self.path.join(".ronde");
        let mut builder = DirBuilder::new();
        builder.recursive(true).mode(0o700).create(&folder).map_err(Error::file("make", &folder))?;
        Ok(folder.join(name))
    }

    /// What the image is built from: the folder's own copy, or the repository that it is part of.
    pub(crate) fn image_context(&self) -> PathBuf {
        let own = self.path.join("image");
        if own.is_dir() { own } else { self.path.join("../..") }
    }

    /// What kind of cluster it has.
    pub(crate) fn kind(&self) -> Result<Kind, Error> {
        Ok(self.noted()?.kind)
    }

    /// What it remembers of its cluster.
    pub(crate) fn noted(&self) -> Result<Noted, Error> {
        let path = self.own("cluster.json")?;
        match fs::read_to_string(&path) {
            Ok(text) => serde_json::from_str(&text)
                .map_err(|error| Error::Unreadable { path, problem: error.to_string() }),
            Err(_) => Ok(Noted::default()),
        }
    }

    /// Notes what cluster it has from now on.
    pub(crate) fn note(&self, noted: &Noted) -> Result<(), Error> {
        let path = self.own("cluster.json")?;
        let text = serde_json::to_string(noted).unwrap_or_default();
        fs::write(&path, text).map_err(Error::file("write", &path))
    }

    /// Whether it has a cluster of a cloud, or something of one. What only a remote state knows is not seen.
    pub(crate) fn has_cloud(&self) -> Result<bool, Error> {
        let state = fs::read_to_string(self.file("terraform.tfstate")).unwrap_or_default();
        let has_machines = self.kind()? == Kind::Cloud && self.file("inventory.yaml").is_file();
        Ok(has_machines || has_resources(&state))
    }

    /// Whether a run was cut short that may have left something in a cloud, which has not been asked since.
    pub(crate) fn was_cut_short(&self) -> Result<bool, Error> {
        Ok(self.own(APPLYING)?.exists())
    }

    /// The file that lists the machines.
    pub(crate) fn inventory(&self) -> Result<PathBuf, Error> {
        Ok(match self.kind()? {
            Kind::Inventory { file } => file,
            Kind::Cloud | Kind::Local { .. } => self.file("inventory.yaml"),
        })
    }

    /// The machines.
    pub(crate) fn cluster(&self) -> Result<Cluster, Error> {
        let path = self.inventory()?;
        if !path.is_file() {
            return Err(Error::NotUp { folder: self.path.clone() });
        }
        machines(&path)
    }

    /// One of the variable files.
    pub(crate) fn variables(&self, name: &str) -> Result<Variables, Error> {
        let path = self.file(name);
        let text = fs::read_to_string(&path).map_err(Error::file("read", &path))?;
        Variables::read(&text).map_err(|problem| Error::Unreadable { path, problem })
    }

    /// Writes a file as a whole or not at all, with these rights.
    pub(crate) fn write(&self, name: &str, contents: &[u8], mode: u32) -> Result<(), Error> {
        let path = self.file(name);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).map_err(Error::file("make", parent))?;
        }
        let new = path.with_extension("new");
        let _ = fs::remove_file(&new);
        let written = OpenOptions::new()
            .create_new(true)
            .write(true)
            .mode(mode)
            .open(&new)
            .and_then(|mut file| file.write_all(contents));
        written.and_then(|()| fs::rename(&new, &path)).map_err(Error::file("write", &path))
    }
}

/// The machines of an inventory.
pub(crate) fn machines(inventory: &Path) -> Result<Cluster, Error> {
    let text = fs::read_to_string(inventory).map_err(Error::file("read", inventory))?;
    Cluster::read(&text).map_err(|problem| Error::Inventory { path: inventory.to_owned(), problem })
}

/// Whether Terraform has made something, by the text of its state. One that cannot be read may tell of something.
fn has_resources(state: &str) -> bool {
    if state.trim().is_empty() {
        return false;
    }
    let Ok(state) = serde_json::from_str::<Value>(state) else { return true };
    let resources = state.get("resources").and_then(Value::as_array);
    resources.is_some_and(|resources| resources.iter().any(|resource| resource["mode"] != "data"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_tells_whether_terraform_has_made_something() {
        for (state, expected) in [
            ("", false),
            (r#"{"version": 4, "resources": []}"#, false),
            (r#"{"version": 4, "resources": [{"mode": "data", "type": "a"}]}"#, false),
            (r#"{"version": 4, "resources": [{"mode": "managed", "type": "a"}]}"#, true),
            ("cut off", true),
        ] {
            assert_eq!(has_resources(state), expected, "{state}");
        }
    }

    #[test]
    fn a_cluster_grows_but_does_not_become_one_of_another_kind() {
        let local = |machines| Kind::Local { machines };
        let inventory = |file: &str| Kind::Inventory { file: file.into() };
        assert!(local(2).becomes(&local(3)) && inventory("/a").becomes(&inventory("/a")));
        assert!(!local(2).becomes(&inventory("/a")) && !inventory("/a").becomes(&inventory("/b")));
    }

    fn containers(image: Option<&str>, framework: Option<&str>) -> Containers {
        Containers { image: image.map(str::to_owned), framework: framework.map(str::to_owned) }
    }

    #[test]
    fn the_command_that_makes_a_cluster_anew_says_all_that_was_said() {
        let local = Noted { kind: Kind::Local { machines: 3 }, ..Noted::default() };
        assert_eq!(local.up(), "ronde cluster up --local 3");
        let kind = Kind::Inventory { file: "/a b".into() };
        let noted = Noted { kind, containers: containers(Some("/i.tar"), Some("torch")) };
        assert_eq!(noted.up(), "ronde cluster up --inventory '/a b' --image /i.tar --framework torch");
    }

    #[test]
    fn what_is_said_now_counts_more_than_what_was_said_before() {
        let before = containers(Some("mine"), Some("torch"));
        assert_eq!(containers(None, None).or(before.clone()), before);
        assert_eq!(
            containers(Some("other"), None).or(before.clone()),
            containers(Some("other"), Some("torch"))
        );
        // An image that is there has its framework: whoever asks for another one wants it built.
        assert_eq!(containers(None, Some("tensorflow")).or(before), containers(None, Some("tensorflow")));
    }

    #[test]
    fn what_is_remembered_reads_back_and_so_does_what_an_older_version_wrote() {
        let kind = Kind::Local { machines: 2 };
        let noted = Noted { kind: kind.clone(), containers: containers(Some("mine"), None) };
        let text = serde_json::to_string(&noted).expect("it is written");
        assert_eq!(text, r#"{"kind":"local","machines":2,"image":"mine"}"#);
        assert_eq!(serde_json::from_str::<Noted>(&text).expect("it reads"), noted);
        let older = serde_json::from_str::<Noted>(r#"{"kind":"local","machines":2}"#).expect("it reads");
        assert_eq!(older, Noted { kind, ..Noted::default() });
        let cloud = serde_json::from_str::<Noted>(r#"{"kind":"cloud"}"#).expect("it reads");
        assert_eq!(cloud, Noted::default());
    }
}
