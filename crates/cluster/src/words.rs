//! How times and lists are written.

use std::time::Duration;

/// A span of time as people say it: `0.4 s`, `12 s`, `4 m 12 s`, `1 h 5 m`.
pub(crate) fn span(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0..10 => format!("{:.1} s", time.as_secs_f64()),
        10..60 => format!("{seconds} s"),
        60..3600 => format!("{} m {} s", seconds / 60, seconds % 60),
        _ => format!("{} h {} m", seconds / 3600, seconds % 3600 / 60),
    }
}

/// `1 worker`, `3 workers`.
pub(crate) fn count(number: usize, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

/// A line cut so that it fits a terminal of this width.
pub(crate) fn cut(line: &str, width: usize) -> String {
    if line.chars().count() <= width {
        return line.to_owned();
    }
    line.chars().take(width.saturating_sub(1)).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_read_well() {
        for (millis, text) in
            [(400, "0.4 s"), (12_000, "12 s"), (252_000, "4 m 12 s"), (5_400_000, "1 h 30 m")]
        {
            assert_eq!(span(Duration::from_millis(millis)), text);
        }
    }

    #[test]
    fn long_lines_are_cut_by_letters() {
        assert_eq!(cut("ab✓de", 5), "ab✓de");
        assert_eq!(cut("ab✓def", 5), "ab✓d…");
    }
}
