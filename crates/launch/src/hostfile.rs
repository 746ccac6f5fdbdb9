//! Files of hosts, as `--hostfile` names them: one host a line.
//!
//! ```text
//! # the machines under the desk
//! gpu1 slots=4
//! gpu2:4
//! gpu3                        one slot
//! [fd00::7] slots=2 max_slots=4
//! ```
//!
//! That is what Horovod, Open MPI and MPICH users have. A host that stands in several lines has the
//! sum of their slots, since batch systems write one line a slot.

use std::path::Path;

use crate::hosts::{parse_host, parse_slots};
use crate::{Error, Host};

/// Reads the hosts of a file.
pub fn read_hostfile(path: &Path) -> Result<Vec<Host>, Error> {
    let text = std::fs::read_to_string(path)
        .map_err(|source| Error::HostfileUnreadable { path: path.to_owned(), source })?;
    parse_hostfile(path, &text)
}

/// The hosts in the text of a file; the path is only for what is said about it.
fn parse_hostfile(path: &Path, text: &str) -> Result<Vec<Host>, Error> {
    let mut hosts: Vec<Host> = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let content = line.split_once('#').map_or(line, |(before, _)| before).trim();
        if content.is_empty() {
            continue;
        }
        let host = parse_line(content).map_err(|problem| Error::BadHostfile {
            path: path.to_owned(),
            line: index + 1,
            text: content.to_owned(),
            problem,
        })?;
        match hosts.iter_mut().find(|other| other.name == host.name) {
            Some(same) => same.slots = same.slots.saturating_add(host.slots),
            None => hosts.push(host),
        }
    }
    match hosts.is_empty() {
        true => Err(Error::EmptyHostfile { path: path.to_owned() }),
        false => Ok(hosts),
    }
}

fn parse_line(line: &str) -> Result<Host, String> {
    let mut words = line.split_whitespace();
    let (name, mut slots) = parse_host(words.next().unwrap_or_default())?;
    for word in words {
        match word.split_once('=') {
            Some(("slots", count)) => {
                let count = parse_slots(count)?;
                if slots.replace(count).is_some() {
                    return Err("its slots are given twice".to_owned());
                }
            }
            // Open MPI's bound for more ranks than slots, which we never start.
            Some(("max_slots" | "max-slots", _)) => {}
            _ => return Err(format!("{word:?} is not understood; after the name comes slots=N")),
        }
    }
    Ok(Host { name, slots: slots.unwrap_or(1) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Vec<(String, usize)>, String> {
        let hosts = parse_hostfile(Path::new("lab/hosts"), text).map_err(|error| error.to_string())?;
        Ok(hosts.into_iter().map(|host| (host.name, host.slots)).collect())
    }

    #[test]
    fn every_way_of_writing_a_host_is_understood() {
        let text = "\
# the lab
gpu1 slots=4

  gpu2:2   # under the desk
gpu3
[fd00::7] slots=2 max_slots=4
[::1]:3\r
10.0.0.9\tmax-slots=8 slots=8
";
        let hosts = [("gpu1", 4), ("gpu2", 2), ("gpu3", 1), ("fd00::7", 2), ("::1", 3), ("10.0.0.9", 8)];
        assert_eq!(read(text), Ok(hosts.map(|(name, slots)| (name.to_owned(), slots)).to_vec()));
    }

    #[test]
    fn slots_of_a_host_in_several_lines_add_up_and_order_is_that_of_first_lines() {
        let hosts = [("b", 3), ("a", 1)].map(|(name, slots)| (name.to_owned(), slots)).to_vec();
        assert_eq!(read("b\nb\na\nb\n"), Ok(hosts));
    }

    #[test]
    fn what_cannot_be_read_is_shown_with_its_file_and_line() {
        assert_eq!(
            read("gpu1 slots=4\n\ngpu2 slots=many # why\n"),
            Err("lab/hosts:3: cannot read \"gpu2 slots=many\": \"many\" is not a number of slots".to_owned())
        );
        for (line, problem) in [
            ("gpu1 slots=0", "0 slots"),
            ("gpu1 4", "\"4\" is not understood"),
            ("gpu1:2 slots=2", "given twice"),
            ("gpu1,gpu2", "',' cannot be part of a name"),
            ("slots=4", "'=' cannot be part of a name"),
            ("fd00::7", "[fd00::7]:1"),
            ("gpu1 cpus=2", "after the name comes slots=N"),
        ] {
            let error = read(line).expect_err(line);
            assert!(error.starts_with("lab/hosts:1: ") && error.contains(problem), "{line}: {error}");
        }
    }

    #[test]
    fn a_file_without_hosts_is_an_error() {
        assert_eq!(read("# nobody\n\n"), Err("lab/hosts names no host".to_owned()));
    }

    #[test]
    fn a_file_that_is_not_there_is_named() {
        let error = read_hostfile(Path::new("/no/such/hosts")).expect_err("no file").to_string();
        assert!(error.starts_with("cannot read /no/such/hosts: "), "{error}");
    }
}
