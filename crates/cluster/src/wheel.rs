//! The wheel that the cluster's image installs: the one that is named, or the installed package packed again.
//!
//! An installed package lists its files with their hashes in its `RECORD`. Programs lie in `PREFIX/bin` and go back into
//! the wheel's `scripts`; what Python or pip added when it was installed is left out.

use std::fs::{self, File};
use std::io::{self, Cursor, Write};
use std::path::{Path, PathBuf};

use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

use crate::error::Error;

/// A wheel: its name and contents.
pub(crate) struct Wheel {
    pub(crate) name: String,
    pub(crate) contents: Vec<u8>,
}

/// The wheel in this file, which must be one of ours.
pub(crate) fn named(path: &Path) -> Result<Wheel, Error> {
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    if !name.starts_with("ronde-") || !name.ends_with(".whl") {
        return Err(Error::NoWheel { problem: format!("{} is no wheel of Ronde", path.display()) });
    }
    let contents = fs::read(path).map_err(Error::file("read", path))?;
    Ok(Wheel { name, contents })
}

/// The package that was installed with this program.
pub(crate) fn installed() -> Result<Wheel, Error> {
    let program =
        std::env::current_exe().map_err(|source| Error::System { doing: "find this program", source })?;
    let prefix = program.parent().and_then(Path::parent).unwrap_or(Path::new("/"));
    let Some((site, info)) = package(prefix) else {
        let problem = format!(
            "this program was not installed by pip: no package lies in {}",
            prefix.join("lib").display()
        );
        return Err(Error::NoWheel { problem });
    };
    pack(&site, &info).map_err(|error| Error::NoWheel { problem: error.to_string() })
}

/// The folder that Python imports from, and that of the package's description in it.
fn package(prefix: &Path) -> Option<(PathBuf, String)> {
    let version = concat!("ronde-", env!("CARGO_PKG_VERSION"), ".dist-info");
    let mut pythons: Vec<PathBuf> =
        fs::read_dir(prefix.join("lib")).ok()?.flatten().map(|entry| entry.path()).collect();
    pythons.sort();
    let sites =
        pythons.iter().flat_map(|python| ["site-packages", "dist-packages"].map(|name| python.join(name)));
    sites
        .into_iter()
        .find(|site| site.join(version).join("RECORD").is_file())
        .map(|site| (site, version.to_owned()))
}

fn pack(site: &Path, info: &str) -> io::Result<Wheel> {
    let description = fs::read_to_string(site.join(info).join("WHEEL"))?;
    let tag = description.lines().find_map(|line| line.strip_prefix("Tag: "));
    let tag = tag.ok_or_else(|| io::Error::other("its description has no tag"))?.trim();
    let version = info.trim_end_matches(".dist-info");
    let record = fs::read_to_string(site.join(info).join("RECORD"))?;
    let mut archive = ZipWriter::new(Cursor::new(Vec::new()));
    let mut packed = String::new();
    for line in record.lines() {
        let Some((path, rest)) = entry(line, info) else { continue };
        let place = match path.rsplit_once("/bin/") {
            Some((up, name)) if up.starts_with("..") => format!("{version}.data/scripts/{name}"),
            _ => path.to_owned(),
        };
        let mode = if place.contains(".data/scripts/") { 0o755 } else { 0o644 };
        archive.start_file(&place, options(mode))?;
        let from = site.join(path);
        let mut file =
            File::open(&from).map_err(|error| io::Error::other(format!("{}: {error}", from.display())))?;
        io::copy(&mut file, &mut archive)?;
        packed.push_str(&format!("{place},{rest}\n"));
    }
    let own = format!("{info}/RECORD");
    packed.push_str(&format!("{own},,\n"));
    archive.start_file(own, options(0o644))?;
    archive.write_all(packed.as_bytes())?;
    let contents = archive.finish()?.into_inner();
    Ok(Wheel { name: format!("{version}-{tag}.whl"), contents })
}

/// A file of the wheel, with its hash and size; nothing for what was not in it.
fn entry<'a>(line: &'a str, info: &str) -> Option<(&'a str, &'a str)> {
    let (path, rest) = line.split_once(',')?;
    let is_added = path.contains("__pycache__")
        || path
            .strip_prefix(info)
            .is_some_and(|name| ["/RECORD", "/INSTALLER", "/REQUESTED", "/direct_url.json"].contains(&name));
    (!is_added && !path.starts_with('"')).then_some((path, rest))
}

fn options(mode: u32) -> SimpleFileOptions {
    SimpleFileOptions::default().compression_method(CompressionMethod::Deflated).unix_permissions(mode)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn an_installed_package_becomes_the_wheel_it_came_from() {
        let top = std::env::temp_dir().join(format!("ronde-wheel-{}", std::process::id()));
        let site = top.join("lib/python3.11/site-packages");
        let info = concat!("ronde-", env!("CARGO_PKG_VERSION"), ".dist-info");
        for folder in [site.join("ronde"), site.join(info), top.join("bin")] {
            fs::create_dir_all(folder).expect("a folder");
        }
        let record = format!(
            "../../../bin/ronde,sha256=a,3\nronde/__init__.py,sha256=b,4\nronde/__pycache__/x.pyc,,\n\
             {info}/WHEEL,sha256=c,9\n{info}/INSTALLER,sha256=d,4\n{info}/RECORD,,\n"
        );
        fs::write(top.join("bin/ronde"), "elf").expect("a file");
        fs::write(site.join("ronde/__init__.py"), "init").expect("a file");
        fs::write(
            site.join(info).join("WHEEL"),
            "Wheel-Version: 1.0\nTag: cp39-abi3-manylinux_2_28_x86_64\n",
        )
        .expect("a file");
        fs::write(site.join(info).join("RECORD"), record).expect("a file");
        let (found, name) = package(&top).expect("it is there");
        let wheel = pack(&found, &name).expect("it is packed");
        fs::remove_dir_all(&top).expect("removed");

        let version = env!("CARGO_PKG_VERSION");
        assert_eq!(wheel.name, format!("ronde-{version}-cp39-abi3-manylinux_2_28_x86_64.whl"));
        let mut archive = zip::ZipArchive::new(Cursor::new(wheel.contents)).expect("an archive");
        let names: Vec<String> =
            archive.file_names().map(|name| name.expect("a name").into_owned()).collect();
        let script = format!("ronde-{version}.data/scripts/ronde");
        assert_eq!(
            names,
            [script.as_str(), "ronde/__init__.py", &format!("{info}/WHEEL"), &format!("{info}/RECORD")]
        );
        assert_eq!(
            archive.by_name(&script).expect("there").unix_mode().map(|mode| mode & 0o777),
            Some(0o755)
        );
        let mut record = String::new();
        archive.by_name(&format!("{info}/RECORD")).expect("there").read_to_string(&mut record).expect("text");
        assert!(
            record.starts_with(&format!("{script},sha256=a,3\nronde/__init__.py,sha256=b,4\n")),
            "{record}"
        );
        assert!(record.ends_with(&format!("{info}/RECORD,,\n")), "{record}");
    }

    #[test]
    fn what_is_no_wheel_of_ours_is_refused() {
        assert!(matches!(named(Path::new("/tmp/torch-2.0.whl")), Err(Error::NoWheel { .. })));
    }
}
