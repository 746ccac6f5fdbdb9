//! Where lines of the log go, seen from outside.
//!
//! This program is both sides: as the child it logs a message of every level, as the parent it reads the child's streams.

use std::process::{Command, ExitCode};

use ronde_settings::{Level, Settings, configure, log};

const ROLE: &str = "RONDE_LOG_TEST_CHILD";
const LEVELS: [Level; 6] =
    [Level::Trace, Level::Debug, Level::Info, Level::Warning, Level::Error, Level::Fatal];

fn main() -> ExitCode {
    if std::env::var_os(ROLE).is_some() {
        log(Level::Warning, "before it was configured");
        configure(&Settings::from_environment(|name| std::env::var(name).ok()).0, 4);
        for level in LEVELS {
            log(level, format_args!("a message of level {}", level.name()));
        }
        return ExitCode::SUCCESS;
    }
    let (stdout, stderr) = streams("debug", "1");
    assert_eq!(stdout, "[D ronde] [4]: a message of level debug\n[I ronde] [4]: a message of level info\n");
    let early = stderr.lines().next().expect("a line");
    assert!(early.ends_with(": W ronde]: before it was configured") && early.starts_with("[20"), "{early}");
    let later: Vec<&str> = stderr.lines().skip(1).collect();
    let expected = [
        "[W ronde] [4]: a message of level warning",
        "[E ronde] [4]: a message of level error",
        "[F ronde] [4]: a message of level fatal",
    ];
    assert_eq!(later, expected);

    let (stdout, stderr) = streams("ERROR", "no");
    assert_eq!(stdout, "");
    assert_eq!(stderr.lines().count(), 3, "{stderr}");
    let last = stderr.lines().last().expect("a line");
    assert!(last.starts_with("[20") && last.ends_with("Z: F ronde] [4]: a message of level fatal"), "{last}");
    println!("test result: ok. 1 passed; 0 failed; 0 ignored");
    ExitCode::SUCCESS
}

fn streams(level: &str, hide_time: &str) -> (String, String) {
    let child = Command::new(std::env::current_exe().expect("this program"))
        .env(ROLE, "1")
        .env("HOROVOD_LOG_LEVEL", level)
        .env("HOROVOD_LOG_HIDE_TIME", hide_time)
        .output()
        .expect("this program starts");
    let text = |bytes| String::from_utf8(bytes).expect("text");
    (text(child.stdout), text(child.stderr))
}
