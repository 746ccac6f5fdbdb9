//! How the values of flags are read. What is wrong with one is said in the middle of clap's sentence:
//! `invalid value '9-1' for '--port-range <LOW-HIGH>': …`.

use std::ops::RangeInclusive;
use std::time::Duration;

/// Arguments for another program, split as a shell would.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Words(pub(crate) Vec<String>);

pub(super) fn words(text: &str) -> Result<Words, String> {
    shlex::split(text).map(Words).ok_or_else(|| "a quote is not closed".to_owned())
}

pub(super) fn seconds(text: &str) -> Result<Duration, String> {
    ronde_settings::value::seconds(text).map_err(|problem| format!("it {problem}"))
}

pub(super) fn positive_seconds(text: &str) -> Result<Duration, String> {
    ronde_settings::value::positive_seconds(text).map_err(|problem| format!("it {problem}"))
}

pub(super) fn count(text: &str) -> Result<usize, String> {
    text.parse().map_err(|_| "it is not a whole number".to_owned())
}

pub(crate) fn at_least_one(text: &str) -> Result<usize, String> {
    text.parse()
        .ok()
        .filter(|count| *count > 0)
        .ok_or_else(|| "it is not a whole number of at least 1".to_owned())
}

pub(crate) fn port(text: &str) -> Result<u16, String> {
    text.parse().ok().filter(|port| *port > 0).ok_or_else(|| "it is not a port (1 to 65535)".to_owned())
}

pub(super) fn port_range(text: &str) -> Result<RangeInclusive<u16>, String> {
    let (low, high) = text.split_once('-').ok_or("two ports with a dash between them are needed")?;
    let (low, high) = (port(low.trim())?, port(high.trim())?);
    if low > high {
        return Err(format!("{low} is larger than {high}"));
    }
    Ok(low..=high)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_for_ssh_are_split_as_a_shell_would() {
        let split = words(r#"-J gate -o "ProxyCommand=nc %h 22" -o 'X=a b'"#).expect("closed quotes").0;
        assert_eq!(split, ["-J", "gate", "-o", "ProxyCommand=nc %h 22", "-o", "X=a b"]);
        assert_eq!(words("-o 'X"), Err("a quote is not closed".to_owned()));
    }

    #[test]
    fn ranges_of_ports_are_read_and_wrong_ones_explained() {
        assert_eq!(port_range("4000-4010"), Ok(4000..=4010));
        assert_eq!(port_range("4000-4000"), Ok(4000..=4000));
        let cases = [
            ("4000", "two ports"),
            ("2-1", "2 is larger than 1"),
            ("0-9", "1 to 65535"),
            ("1-70000", "1 to 65535"),
        ];
        for (text, problem) in cases {
            let error = port_range(text).expect_err(text);
            assert!(error.contains(problem), "{text}: {error}");
        }
    }
}
