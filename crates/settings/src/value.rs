//! From a variable's text to its value: the one place where values are read.
//!
//! Every function gets the text without surrounding blanks and returns the value, or the second half of a complaint:
//! "is not a whole number". Upstream took `true` for off and letters for 0; both surprised people.

use std::time::Duration;

use crate::variable::Kind;

/// On or off: `1`/`0`, `true`/`false`, `yes`/`no`, `on`/`off` in any case; other whole numbers are on if positive.
pub fn switch(text: &str) -> Result<bool, String> {
    match text.to_ascii_lowercase().as_str() {
        "true" | "yes" | "on" => Ok(true),
        "false" | "no" | "off" => Ok(false),
        number => match number.parse::<i64>() {
            Ok(number) => Ok(number > 0),
            Err(_) => Err("is neither on (1, true, yes, on) nor off (0, false, no, off)".to_owned()),
        },
    }
}

/// A whole number that is not negative.
pub fn count(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| "is not a whole number".to_owned())
}

/// A whole number of things of which there must be one.
pub fn positive_count(text: &str) -> Result<usize, String> {
    let read = text.parse().ok().filter(|count| *count > 0);
    read.ok_or_else(|| "is not a whole number of at least 1".to_owned())
}

/// A whole number of bytes.
pub fn bytes(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| "is not a whole number of bytes".to_owned())
}

/// A number that is not negative.
pub fn number(text: &str) -> Result<f64, String> {
    let read = text.parse().ok().filter(|number: &f64| number.is_finite() && *number >= 0.0);
    read.ok_or_else(|| "is not a number of at least 0".to_owned())
}

/// A time in seconds.
pub fn seconds(text: &str) -> Result<Duration, String> {
    time(text, 1.0, "seconds")
}

/// A time in seconds that is not 0, for where no time at all makes no sense.
pub fn positive_seconds(text: &str) -> Result<Duration, String> {
    let read = seconds(text).ok().filter(|time| !time.is_zero());
    read.ok_or_else(|| "is not a positive number of seconds".to_owned())
}

/// A time in milliseconds.
pub fn milliseconds(text: &str) -> Result<Duration, String> {
    time(text, 1000.0, "milliseconds")
}

fn time(text: &str, units_a_second: f64, unit: &str) -> Result<Duration, String> {
    let read =
        text.parse().ok().and_then(|time: f64| Duration::try_from_secs_f64(time / units_a_second).ok());
    read.ok_or_else(|| format!("is not a number of {unit}"))
}

/// Numbers of processor cores, separated by commas.
pub fn cores(text: &str) -> Result<Vec<usize>, String> {
    let read: Result<_, _> = text.split(',').map(|core| core.trim().parse()).collect();
    read.map_err(|_| "is not a list of core numbers such as 0,2,4".to_owned())
}

/// One of `words`, in any case.
pub fn word(text: &str, words: &[&'static str]) -> Result<&'static str, String> {
    let found = words.iter().copied().find(|word| word.eq_ignore_ascii_case(text));
    found.ok_or_else(|| format!("is none of {}", words.join(", ")))
}

/// Whether both texts say the same as values of a kind, as `true` and `1` do for a switch.
pub(crate) fn equal(kind: Kind, one: &str, other: &str) -> bool {
    fn same<T: PartialEq>(one: Result<T, String>, other: Result<T, String>) -> bool {
        matches!((one, other), (Ok(one), Ok(other)) if one == other)
    }
    match kind {
        Kind::Switch => same(switch(one), switch(other)),
        Kind::Word(words) => same(word(one, words), word(other, words)),
        Kind::Count | Kind::Bytes | Kind::Number | Kind::Seconds | Kind::Milliseconds => {
            same(number(one), number(other))
        }
        Kind::Cores => same(cores(one), cores(other)),
        Kind::Path | Kind::Text => one == other,
    }
}

/// `NAME=VALUE`, or `NAME` for the value it has here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assignment {
    /// The variable.
    pub name: String,
    /// Its value, if one was given.
    pub value: Option<String>,
}

/// A variable for other processes, as command lines have it.
pub fn assignment(text: &str) -> Result<Assignment, String> {
    let (name, value) = match text.split_once('=') {
        Some((name, value)) => (name, Some(value.to_owned())),
        None => (text, None),
    };
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    if name.is_empty() || name.starts_with(|first: char| first.is_ascii_digit()) || !name.bytes().all(fits) {
        return Err(format!("{name:?} is not the name of a variable"));
    }
    Ok(Assignment { name: name.to_owned(), value })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn switches_understand_words_and_numbers() {
        for on in ["1", "true", "TRUE", "Yes", "on", "2"] {
            assert_eq!(switch(on), Ok(true), "{on}");
        }
        for off in ["0", "false", "no", "OFF", "-1"] {
            assert_eq!(switch(off), Ok(false), "{off}");
        }
        for neither in ["", "maybe", "1.0", "truee"] {
            assert!(switch(neither).is_err(), "{neither}");
        }
    }

    #[test]
    fn numbers_that_are_none_are_refused_with_a_complaint_that_says_what_was_expected() {
        assert_eq!(count("1024"), Ok(1024));
        assert_eq!(positive_count("2"), Ok(2));
        for wrong in ["0", "-1", "two"] {
            assert_eq!(
                positive_count(wrong),
                Err("is not a whole number of at least 1".to_owned()),
                "{wrong}"
            );
        }
        for wrong in ["-1", "1.5", "many", "(None,)", "64MB"] {
            assert_eq!(bytes(wrong), Err("is not a whole number of bytes".to_owned()), "{wrong}");
        }
        assert_eq!(number("0.8"), Ok(0.8));
        for wrong in ["-0.5", "nan", "inf", "x"] {
            assert!(number(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn times_may_have_fractions() {
        assert_eq!(milliseconds("2.5"), Ok(Duration::from_micros(2500)));
        assert_eq!(seconds("60"), Ok(Duration::from_secs(60)));
        for wrong in ["-1", "1e300", "1s", "nan"] {
            assert_eq!(seconds(wrong), Err("is not a number of seconds".to_owned()), "{wrong}");
        }
        assert_eq!(seconds("0"), Ok(Duration::ZERO));
        assert_eq!(positive_seconds("0.5"), Ok(Duration::from_millis(500)));
        for wrong in ["0", "-1", "soon"] {
            assert_eq!(
                positive_seconds(wrong),
                Err("is not a positive number of seconds".to_owned()),
                "{wrong}"
            );
        }
    }

    #[test]
    fn cores_are_a_list() {
        assert_eq!(cores("3"), Ok(vec![3]));
        assert_eq!(cores("0, 2,4"), Ok(vec![0, 2, 4]));
        for wrong in ["0,,2", "0-3", "-1", "a"] {
            assert!(cores(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn words_are_found_in_any_case_and_the_choice_is_named_otherwise() {
        assert_eq!(word("GLOO", &["gloo", "mpi"]), Ok("gloo"));
        assert_eq!(word("nccl", &["gloo", "mpi"]), Err("is none of gloo, mpi".to_owned()));
    }

    #[test]
    fn variables_come_with_a_value_or_without() {
        let read = |text| assignment(text).map(|Assignment { name, value }| (name, value));
        assert_eq!(read("A=b=c"), Ok(("A".to_owned(), Some("b=c".to_owned()))));
        assert_eq!(read("A_1="), Ok(("A_1".to_owned(), Some(String::new()))));
        assert_eq!(read("PATH"), Ok(("PATH".to_owned(), None)));
        for wrong in ["", "=x", "1A=x", "A-B=x", "A B"] {
            assert!(read(wrong).is_err(), "{wrong:?}");
        }
    }
}
