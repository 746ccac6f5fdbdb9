//! `ronde doctor`: shows what the launcher's library finds out about hosts.
//!
//! On a terminal the table is drawn again whenever something is known, over the last one. Elsewhere a line on standard
//! error says which host is done, and the table comes at the end. With `--json` there is only the JSON.

use std::io::{self, IsTerminal, Write};

use ronde_launch::{Doctor, Host, Report};

use crate::args::DoctorArgs;
use crate::problem::Problem;
use crate::status::Status;

pub(crate) fn doctor(args: DoctorArgs) -> Status {
    match examine(args) {
        Ok(0) => Status::Success,
        Ok(code) => Status::Job(code),
        Err(problem) => {
            let _ = io::stderr().write_all(problem.render().as_bytes());
            problem.status()
        }
    }
}

/// Examines the hosts and shows what was found; returns 0 if a job can start.
fn examine(args: DoctorArgs) -> Result<u8, Problem> {
    let this_machine = || vec![Host { name: "localhost".to_owned(), slots: 1 }];
    let request = Doctor {
        hosts: args.hosts.read()?.unwrap_or_else(this_machine),
        ssh: args.ssh.into_ssh(),
        interfaces: args.network_interfaces,
        ports: args.port_range,
    };
    let status = ronde_launch::doctor(&request, |examination| {
        let mut show = Show::choose(args.json, request.hosts.len());
        match examination.run(|report| show.progress(report)) {
            Ok(report) => {
                // Whoever closed our output early does not want the rest.
                let _ = show.end(&report);
                u8::from(!report.healthy)
            }
            Err(error) => {
                let _ = io::stderr().write_all(error.render().as_bytes());
                1
            }
        }
    })?;
    Ok(status)
}

/// How the report is shown.
enum Show {
    Json,
    /// On a terminal: this many lines were drawn last, and a line has this many places.
    Live {
        drawn: usize,
        width: usize,
        unicode: bool,
    },
    /// Elsewhere: these hosts have been told of.
    Lines {
        told: Vec<String>,
        unicode: bool,
    },
}

impl Show {
    fn choose(json: bool, hosts: usize) -> Show {
        let unicode = ronde_launch::is_unicode(|name| std::env::var(name).ok());
        let size = rustix::termios::tcgetwinsize(io::stdout()).ok();
        match size.filter(|_| io::stdout().is_terminal()) {
            _ if json => Show::Json,
            // What has left the screen at the top cannot be drawn over: one line each, the titles, and the ways.
            Some(size) if usize::from(size.ws_row) > hosts + 12 && size.ws_col > 0 => {
                Show::Live { drawn: 0, width: size.ws_col.into(), unicode }
            }
            _ => Show::Lines { told: Vec::new(), unicode },
        }
    }

    /// Shows how far it is.
    fn progress(&mut self, report: &Report) {
        match self {
            Show::Json => {}
            Show::Live { drawn, width, unicode } => {
                let text = cut(&ronde_launch::table(report, *unicode), *width);
                let mut out = io::stdout();
                // In one piece, so that nothing flickers.
                let _ = out.write_all(format!("{}{text}", over(*drawn)).as_bytes());
                let _ = out.flush();
                *drawn = text.lines().count();
            }
            Show::Lines { told, .. } => {
                for host in report.hosts.iter().filter(|host| host.is_done()) {
                    if !told.contains(&host.name) {
                        told.push(host.name.clone());
                        let _ = writeln!(
                            io::stderr(),
                            "{}",
                            done(&host.name, host.findings.is_some(), told.len(), report.hosts.len())
                        );
                    }
                }
            }
        }
    }

    /// Shows everything.
    fn end(&mut self, report: &Report) -> io::Result<()> {
        let mut out = io::stdout();
        match self {
            Show::Json => {
                serde_json::to_writer_pretty(&mut out, report)?;
                writeln!(out)
            }
            Show::Live { drawn, unicode, .. } => {
                write!(out, "{}", over(*drawn))?;
                write!(out, "{}{}", ronde_launch::table(report, *unicode), ronde_launch::problems(report))
            }
            Show::Lines { unicode, .. } => {
                write!(out, "{}{}", ronde_launch::table(report, *unicode), ronde_launch::problems(report))
            }
        }
    }
}

/// Goes back to the first of so many lines and clears them.
fn over(lines: usize) -> String {
    match lines {
        0 => String::new(),
        lines => format!("\x1b[{lines}A\x1b[J"),
    }
}

/// Lines that do not wrap, since a wrapped one would count as two.
fn cut(text: &str, width: usize) -> String {
    text.lines().map(|line| line.chars().take(width).collect::<String>() + "\n").collect()
}

fn done(name: &str, examined: bool, count: usize, all: usize) -> String {
    let how = if examined { "examined" } else { "could not be examined" };
    format!("{name} {how} ({count} of {all})")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_drawn_over_the_last_one_and_never_wraps() {
        assert_eq!(over(0), "");
        assert_eq!(over(3), "\x1b[3A\x1b[J");
        assert_eq!(cut("  gpu1  ✓  ✓\n  gpu2\n", 9), "  gpu1  ✓\n  gpu2\n");
    }

    #[test]
    fn a_log_says_how_far_it_is() {
        assert_eq!(done("gpu1", true, 1, 2), "gpu1 examined (1 of 2)");
        assert_eq!(done("gpu2", false, 2, 2), "gpu2 could not be examined (2 of 2)");
    }
}
