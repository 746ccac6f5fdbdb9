//! What is behind an error, and what to do about it.
//!
//! The tools' own words are always shown; this adds the cause and the fix. Rules are tried in order, and each looks for
//! words that the tools are known to use. The same words mean another thing where something else says them, a registry's
//! `unauthorized` for one, so there are two lists: `cloud.rs` for Terraform and OpenStack, `machine.rs` for ssh and
//! Ansible.

pub(crate) mod cloud;
pub(crate) mod machine;

/// An error as it is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cause {
    pub(crate) what: String,
    pub(crate) fix: Option<String>,
}

/// Any of `any` and all of `all` must be in the text, which is in small letters. A word of three digits is a status of
/// HTTP, and counts only where one is told of: numbers are everywhere.
struct Rule {
    any: &'static [&'static str],
    all: &'static [&'static str],
    what: &'static str,
    fix: &'static str,
}

impl Rule {
    fn fits(&self, text: &str) -> bool {
        let is_said = |word: &&str| match word.bytes().all(|letter| letter.is_ascii_digit()) {
            true => tells_status(text, word),
            false => text.contains(*word),
        };
        self.any.iter().any(is_said) && self.all.iter().all(is_said)
    }
}

/// The words with what the first rule that fits says of the text; as they are, if none does.
fn explained(rules: impl IntoIterator<Item = &'static Rule>, text: &str, words: &str) -> Cause {
    let text = text.to_lowercase();
    match rules.into_iter().find(|rule| rule.fits(&text)) {
        Some(rule) => Cause { what: format!("{}\n{words}", rule.what), fix: Some(rule.fix.to_owned()) },
        None => Cause { what: words.to_owned(), fix: None },
    }
}

/// Whether a text tells of this status of HTTP, as in `but got 403 instead`, `(HTTP 403)` or `"code": 403`.
fn tells_status(text: &str, status: &str) -> bool {
    text.match_indices(status).any(|(at, _)| {
        let (before, after) = (&text[..at], &text[at + status.len()..]);
        let before = before.trim_end_matches([' ', ':', '"', '=']);
        before.len() < at
            && ["got", "http", "http/1.0", "http/1.1", "http/2", "status", "code"]
                .iter()
                .any(|word| before.ends_with(word))
            && !after.starts_with(|next: char| next.is_ascii_alphanumeric())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_a_status_only_where_one_is_told_of() {
        for (text, expected) in [
            ("expected http response code [200 201] when accessing [get x], but got 403 instead", true),
            (r#"{"forbidden": {"code": 403, "message": "no"}}"#, true),
            ("the server has refused it (http 403)", true),
            ("http/1.1 403 forbidden", true),
            ("status code: 403", true),
            ("sha256:4031aa0c", false),
            ("step 403 of 500", false),
            ("port 10.0.4.403", false),
            ("http 4031", false),
            ("code403", false),
        ] {
            assert_eq!(tells_status(text, "403"), expected, "{text}");
        }
    }
}
