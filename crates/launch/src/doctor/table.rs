//! The doctor's report as text: a row for every host, the ways between them, the problems.
//!
//! The same function draws the table while it fills and when it is done; a cell whose check is still being made shows a
//! dot. Nothing here knows about terminals.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use super::judge::judge;
use super::question::{Findings, Folder};
use super::report::{Check, HostReport, Pair, Problem, Report, Severity};
use crate::report::counted;

/// How many pairs of hosts are shown; the slowest come first.
const SHOWN_PAIRS: usize = 8;

/// The marks in cells.
struct Marks {
    good: &'static str,
    bad: &'static str,
    skipped: &'static str,
    pending: &'static str,
    arrow: &'static str,
}

const UNICODE: Marks = Marks { good: "✓", bad: "✗", skipped: "–", pending: "·", arrow: "↔" };
const PLAIN: Marks = Marks { good: "ok", bad: "NO", skipped: "-", pending: ".", arrow: "<->" };

/// The rows of the hosts and of the ways between them.
pub fn table(report: &Report, unicode: bool) -> String {
    let marks = if unicode { &UNICODE } else { &PLAIN };
    let frameworks = frameworks(report);
    let has_gpus = report.hosts.iter().any(has_gpus);
    let mut rows = vec![titles(&frameworks, has_gpus)];
    rows.extend(report.hosts.iter().map(|host| row(host, marks, &frameworks, has_gpus)));
    let mut text = aligned(&rows);
    text.push_str(&ways(report, marks));
    text
}

/// How many problems there are, and each with its fix.
pub fn problems(report: &Report) -> String {
    if report.problems.is_empty() {
        return "no problems\n".to_owned();
    }
    let count = |severity| report.problems.iter().filter(|problem| problem.severity == severity).count();
    let (errors, warnings) = (count(Severity::Error), count(Severity::Warning));
    let counts: Vec<String> = [(errors, "problem"), (warnings, "warning")]
        .into_iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, noun)| counted(count, noun))
        .collect();
    let mut text = format!("{}\n", counts.join(", "));
    for problem in &report.problems {
        text.push_str(&told(problem));
    }
    text
}

fn told(problem: &Problem) -> String {
    let who = problem.hosts.join(", ");
    let sign = match problem.severity {
        Severity::Error => "",
        Severity::Warning => "warning: ",
    };
    // What ssh's failures say names the host already.
    let named = problem.hosts.first().is_some_and(|host| problem.what.starts_with(&format!("{host} (")));
    let mut text = match named {
        true => format!("  {sign}{}\n", problem.what),
        false => format!("  {sign}{who}: {}\n", problem.what),
    };
    if let Some(fix) = &problem.fix {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "        fix:  {fix}");
    }
    text
}

/// Gives the report its problems and its verdict.
pub(super) fn conclude(report: &mut Report) {
    report.problems = judge(report);
    report.healthy = report.problems.iter().all(|problem| problem.severity != Severity::Error);
}

/// The frameworks that any host has.
fn frameworks(report: &Report) -> Vec<String> {
    let pythons = report.hosts.iter().filter_map(|host| host.findings.as_ref()?.python.as_ref());
    let names: BTreeSet<&String> = pythons.flat_map(|python| python.packages.keys()).collect();
    let shown = |name: &&String| ["torch", "tensorflow", "mxnet", "jax"].contains(&name.as_str());
    names.into_iter().filter(shown).cloned().collect()
}

fn titles(frameworks: &[String], has_gpus: bool) -> Vec<String> {
    let mut titles: Vec<String> =
        ["", "name", "port", "host key", "login", "ronde", "python"].map(str::to_owned).into();
    titles.extend(frameworks.iter().cloned());
    titles.extend(has_gpus.then(|| "GPUs".to_owned()));
    titles.extend(["clock".to_owned(), "folder".to_owned()]);
    titles
}

fn row(host: &HostReport, marks: &Marks, frameworks: &[String], has_gpus: bool) -> Vec<String> {
    let mark = |check: Check| match check {
        Check::Pending => marks.pending,
        Check::Good => marks.good,
        Check::Bad => marks.bad,
        Check::Skipped => marks.skipped,
    };
    let checks =
        [host.resolves, host.port_open, host.host_key, host.login].map(|check| mark(check).to_owned());
    let mut cells = vec![host.name.clone()];
    cells.extend(checks);
    cells.push(match (host.agent, host.program_sent) {
        (Check::Good, true) => "sent".to_owned(),
        (Check::Good, false) => env!("CARGO_PKG_VERSION").to_owned(),
        (check, _) => mark(check).to_owned(),
    });
    // What comes of an examination that is yet to come, or will never come.
    let nothing = || match host.agent {
        Check::Bad | Check::Skipped => marks.skipped.to_owned(),
        _ if host.trouble.is_some() => marks.skipped.to_owned(),
        _ if host.findings.is_none() => marks.pending.to_owned(),
        _ => marks.skipped.to_owned(),
    };
    let found = |read: &dyn Fn(&Findings) -> Option<String>| {
        host.findings.as_ref().and_then(read).unwrap_or_else(nothing)
    };
    let python = |found: &Findings| found.python.as_ref().map(|python| python.version.clone());
    cells.push(match &host.findings {
        Some(findings) => python(findings).unwrap_or_else(|| marks.bad.to_owned()),
        None => nothing(),
    });
    for name in frameworks {
        cells.push(found(&|findings| findings.python.as_ref()?.packages.get(name).cloned()));
    }
    if has_gpus {
        let count = |count: usize| format!("{count} of {}", host.slots);
        cells.push(found(&|findings| Some(count(findings.visible_gpus))));
    }
    cells.push(host.clock_ahead.map_or_else(nothing, clock));
    cells.push(found(&|findings| Some(folder(findings.folder).to_owned())));
    cells
}

fn folder(folder: Folder) -> &'static str {
    match folder {
        Folder::Shared => "shared",
        Folder::Own => "its own",
        Folder::Unclear => "there",
        Folder::Missing => "missing",
    }
}

fn has_gpus(host: &HostReport) -> bool {
    let gpus = host.findings.as_ref().and_then(|findings| findings.gpus.as_ref());
    gpus.is_some_and(|gpus| !gpus.is_empty())
}

/// `+2 ms`, `-61 s`.
fn clock(ahead: f64) -> String {
    match ahead.abs() {
        difference if difference < 0.0005 => "0 ms".to_owned(),
        difference if difference < 1.0 => format!("{:+.0} ms", ahead * 1e3),
        _ => format!("{ahead:+.0} s"),
    }
}

/// The ways between hosts that were measured, the slowest first.
fn ways(report: &Report, marks: &Marks) -> String {
    let mut pairs: Vec<&Pair> = report.pairs.iter().collect();
    let speed = |pair: &Pair| pair.bandwidth().unwrap_or(if pair.best().is_some() { f64::MAX } else { 0.0 });
    pairs.sort_by(|one, other| speed(one).total_cmp(&speed(other)));
    let width = pairs.iter().map(|pair| pair_name(pair, marks).chars().count()).max().unwrap_or_default();
    let mut text = String::new();
    for pair in pairs.iter().take(SHOWN_PAIRS) {
        let name = pair_name(pair, marks);
        let how = match pair.best() {
            Some(way) => {
                let rate = pair.bandwidth().map_or_else(String::new, |rate| format!("{}, ", bandwidth(rate)));
                let time = way
                    .round_trip
                    .map_or_else(String::new, |time| format!("{} there and back", self::time(time)));
                let address = way.address.map_or_else(String::new, |address| format!(", by {address}"));
                format!("{rate}{time}{address}")
            }
            None => format!("{} no way", marks.bad),
        };
        // Writing to a string cannot fail.
        let _ = writeln!(text, "  {name:width$}  {how}");
    }
    if pairs.len() > SHOWN_PAIRS {
        let _ =
            writeln!(text, "  and {} more that are no slower", counted(pairs.len() - SHOWN_PAIRS, "pair"));
    }
    text
}

fn pair_name(pair: &Pair, marks: &Marks) -> String {
    format!("{} {} {}", pair.from, marks.arrow, pair.to)
}

/// `24.8 Gbit/s`.
fn bandwidth(bits: f64) -> String {
    match bits {
        _ if bits >= 1e9 => format!("{:.1} Gbit/s", bits / 1e9),
        _ => format!("{:.0} Mbit/s", bits / 1e6),
    }
}

/// `0.08 ms`.
fn time(seconds: f64) -> String {
    match seconds * 1e3 {
        milliseconds if milliseconds < 10.0 => format!("{milliseconds:.2} ms"),
        milliseconds => format!("{milliseconds:.0} ms"),
    }
}

/// Columns as wide as their widest cell, two spaces between them.
fn aligned(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or_default();
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or_default()
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let cells = row.iter().zip(&widths).map(|(cell, &width)| format!("  {cell:width$}"));
        text.push_str(cells.collect::<String>().trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use super::super::question::{Gpu, Python};
    use super::super::report::{Reach, Trouble};
    use super::*;

    fn good(name: &str, slots: usize, gpus: usize) -> HostReport {
        let gpu = Gpu { name: "NVIDIA H200".to_owned(), driver: "570".to_owned() };
        let packages = [("torch", "2.15.0"), ("numpy", "2.1"), ("ronde", "0.1.0")];
        let python = Python {
            path: "python".to_owned(),
            version: "3.11.4".to_owned(),
            packages: packages.map(|(name, version)| (name.to_owned(), version.to_owned())).into(),
        };
        let findings = Findings {
            python: Some(python),
            gpus: Some(vec![gpu; gpus]),
            visible_gpus: gpus,
            cuda: Some("13.0".to_owned()),
            open_files: 4096,
            folder: Folder::Shared,
            ..Findings::default()
        };
        HostReport {
            name: name.to_owned(),
            slots,
            resolves: Check::Good,
            port_open: Check::Good,
            host_key: Check::Good,
            login: Check::Good,
            agent: Check::Good,
            clock_ahead: Some(0.002),
            findings: Some(findings),
            ..HostReport::default()
        }
    }

    fn pair(from: &str, to: &str, rate: f64) -> Pair {
        let address = Some(IpAddr::from(Ipv4Addr::new(10, 0, 0, 12)));
        Pair {
            from: from.to_owned(),
            to: to.to_owned(),
            forward: Reach { address, round_trip: Some(0.000_081), failure: None },
            backward: Reach::default(),
            bits_forward: Some(rate),
            bits_backward: Some(rate * 1.1),
        }
    }

    fn sketch() -> Report {
        let refused = HostReport {
            login: Check::Bad,
            agent: Check::Skipped,
            clock_ahead: None,
            findings: None,
            trouble: Some(Trouble {
                check: "login",
                what: "gpu3 (port 22) refused the key of user anna (tried ~/.ssh/id_ed25519)".to_owned(),
                fix: Some("ronde setup-ssh -H gpu3".to_owned()),
            }),
            ..good("gpu3", 2, 0)
        };
        let sent = HostReport { program_sent: true, clock_ahead: Some(-0.001), ..good("gpu2", 1, 1) };
        let hosts = vec![good("gpu1", 5, 5), sent, refused];
        let mut report = Report { hosts, pairs: vec![pair("gpu1", "gpu2", 24.8e9)], ..Report::default() };
        conclude(&mut report);
        report
    }

    #[test]
    fn a_report_shows_hosts_ways_and_problems() {
        let report = sketch();
        assert_eq!(
            table(&report, true),
            "        name  port  host key  login  ronde  python  torch   GPUs    clock  folder\n  \
             gpu1  ✓     ✓     ✓         ✓      0.1.0  3.11.4  2.15.0  5 of 5  +2 ms  shared\n  \
             gpu2  ✓     ✓     ✓         ✓      sent   3.11.4  2.15.0  1 of 1  -1 ms  shared\n  \
             gpu3  ✓     ✓     ✓         ✗      –      –       –       –       –      –\n  \
             gpu1 ↔ gpu2  24.8 Gbit/s, 0.08 ms there and back, by 10.0.0.12\n"
        );
        assert_eq!(
            problems(&report),
            "1 problem\n  \
             gpu3 (port 22) refused the key of user anna (tried ~/.ssh/id_ed25519)\n        \
             fix:  ronde setup-ssh -H gpu3\n"
        );
        assert!(!report.healthy);
    }

    #[test]
    fn without_unicode_nothing_but_ascii_is_used() {
        let text = table(&sketch(), false);
        assert!(text.is_ascii(), "{text}");
        assert!(text.contains("  gpu3  ok    ok    ok        NO     -"), "{text}");
    }

    #[test]
    fn what_is_still_to_come_is_shown_as_such() {
        let report = Report {
            hosts: vec![HostReport {
                name: "gpu1".to_owned(),
                resolves: Check::Good,
                ..HostReport::default()
            }],
            ..Report::default()
        };
        assert_eq!(
            table(&report, true),
            "        name  port  host key  login  ronde  python  clock  folder\n  \
             gpu1  ✓     ·     ·         ·      ·      ·       ·      ·\n"
        );
    }

    #[test]
    fn of_many_ways_the_slowest_are_shown() {
        let mut report = sketch();
        report.pairs =
            (0..12).map(|number| pair("gpu1", &format!("h{number}"), f64::from(12 - number) * 1e9)).collect();
        report.pairs.push(Pair {
            forward: Reach::default(),
            bits_forward: None,
            ..pair("gpu1", "lost", 1.0)
        });
        let text = ways(&report, &UNICODE);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), SHOWN_PAIRS + 1);
        assert_eq!(lines[0], "  gpu1 ↔ lost  ✗ no way");
        assert_eq!(lines[1], "  gpu1 ↔ h11   1.0 Gbit/s, 0.08 ms there and back, by 10.0.0.12");
        assert_eq!(lines[SHOWN_PAIRS], "  and 5 pairs more that are no slower");
    }

    #[test]
    fn warnings_alone_do_not_make_a_job_impossible() {
        let mut report = Report { hosts: vec![good("gpu1", 1, 1)], ..Report::default() };
        conclude(&mut report);
        assert!(report.healthy);
        assert_eq!(problems(&report), "no problems\n");
        report.hosts[0].clock_ahead = Some(90.0);
        conclude(&mut report);
        assert!(report.healthy);
        assert!(problems(&report).starts_with("1 warning\n  warning: gpu1: its clock is 90.0 s ahead"));
    }
}
