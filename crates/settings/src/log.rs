//! The log: one line a message, as `HOROVOD_LOG_LEVEL` and `HOROVOD_LOG_HIDE_TIME` ask.
//!
//! `[2026-11-15T10:09:40.123Z: W ronde] [0]: text`. Messages up to [`Level::Info`] go to standard output, which is what
//! Horovod did and what people's filters expect; warnings and worse go to standard error. Whoever starts the engine calls
//! [`configure`] once; before that, warnings are shown without a rank.

use std::fmt;
use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering::Relaxed};
use std::time::SystemTime;

use crate::moment::timestamp;
use crate::settings::Settings;
use crate::value;

/// How important a message is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Every step.
    Trace,
    /// What helps to find a fault.
    Debug,
    /// What happens.
    Info,
    /// What should be looked at.
    #[default]
    Warning,
    /// What went wrong.
    Error,
    /// What ends the job.
    Fatal,
}

impl Level {
    const ALL: [Level; 6] =
        [Level::Trace, Level::Debug, Level::Info, Level::Warning, Level::Error, Level::Fatal];

    /// The level of this name, in any case, or a complaint.
    pub(crate) fn parse(text: &str) -> Result<Level, String> {
        let words = Level::ALL.map(Level::name);
        let word = value::word(text, &words)?;
        Ok(Level::ALL.into_iter().find(|level| level.name() == word).unwrap_or_default())
    }

    /// Its name, as `HOROVOD_LOG_LEVEL` has it.
    pub fn name(self) -> &'static str {
        match self {
            Level::Trace => "trace",
            Level::Debug => "debug",
            Level::Info => "info",
            Level::Warning => "warning",
            Level::Error => "error",
            Level::Fatal => "fatal",
        }
    }

    fn letter(self) -> char {
        match self {
            Level::Trace => 'T',
            Level::Debug => 'D',
            Level::Info => 'I',
            Level::Warning => 'W',
            Level::Error => 'E',
            Level::Fatal => 'F',
        }
    }
}

/// Stands for "no rank yet".
const NO_RANK: usize = usize::MAX;

static LEVEL: AtomicU8 = AtomicU8::new(Level::Warning as u8);
static HIDE_TIME: AtomicBool = AtomicBool::new(false);
static RANK: AtomicUsize = AtomicUsize::new(NO_RANK);

/// Makes the log of this process follow the settings, and show this rank.
pub fn configure(settings: &Settings, rank: usize) {
    LEVEL.store(settings.log_level as u8, Relaxed);
    HIDE_TIME.store(settings.log_hide_time, Relaxed);
    RANK.store(rank, Relaxed);
}

/// Whether messages of this level are shown, for those that are costly to make.
pub fn enabled(level: Level) -> bool {
    level as u8 >= LEVEL.load(Relaxed)
}

/// Writes a message, if its level is shown. Never fails: there is nowhere to complain that the log cannot be written.
pub fn log(level: Level, text: impl fmt::Display) {
    if !enabled(level) {
        return;
    }
    let time = (!HIDE_TIME.load(Relaxed)).then(SystemTime::now);
    let rank = Some(RANK.load(Relaxed)).filter(|rank| *rank != NO_RANK);
    let line = line(level, time, rank, &text);
    // One call a line, so that lines of several threads do not mix.
    let _ = if level <= Level::Info {
        std::io::stdout().write_all(line.as_bytes())
    } else {
        std::io::stderr().write_all(line.as_bytes())
    };
}

fn line(level: Level, time: Option<SystemTime>, rank: Option<usize>, text: &impl fmt::Display) -> String {
    let time = time.map(|time| format!("{}: ", timestamp(time))).unwrap_or_default();
    let rank = rank.map(|rank| format!(" [{rank}]")).unwrap_or_default();
    format!("[{time}{} ronde]{rank}: {text}\n", level.letter())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::telling;
    use crate::variable::Kind;

    #[test]
    fn levels_are_read_by_name_in_any_case_and_are_those_of_the_registry() {
        assert_eq!(Level::parse("Debug"), Ok(Level::Debug));
        assert!(Level::parse("verbose").is_err());
        let Kind::Word(words) = telling::LOG_LEVEL.kind else { panic!("a choice of words") };
        assert_eq!(Level::ALL.map(Level::name), words);
    }

    #[test]
    fn a_line_says_when_how_grave_and_who() {
        let epoch = SystemTime::UNIX_EPOCH;
        assert_eq!(
            line(Level::Warning, Some(epoch), Some(3), &"late"),
            "[1970-01-01T00:00:00.000Z: W ronde] [3]: late\n"
        );
        assert_eq!(line(Level::Error, None, None, &"lost"), "[E ronde]: lost\n");
    }
}
