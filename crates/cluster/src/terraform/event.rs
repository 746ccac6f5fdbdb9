//! One line of `terraform … -json` becomes one event. OpenTofu writes the same lines.
//!
//! Kinds of lines that are not known here are left out: newer versions may add some. What is no JSON at all is kept as
//! text, since a provider that crashes writes such lines and they are then all there is.

use serde::Deserialize;

/// What is done with a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Action {
    Create,
    Read,
    Update,
    Delete,
    Replace,
    #[serde(other)]
    Nothing,
}

impl Action {
    /// The word for it while it goes on.
    pub(crate) fn going_on(self) -> &'static str {
        match self {
            Action::Create => "creating",
            Action::Read => "reading",
            Action::Update => "changing",
            Action::Delete => "deleting",
            Action::Replace => "replacing",
            Action::Nothing => "keeping",
        }
    }

    /// The word for it when it is done.
    pub(crate) fn done(self) -> &'static str {
        match self {
            Action::Create => "created",
            Action::Read => "read",
            Action::Update => "changed",
            Action::Delete => "deleted",
            Action::Replace => "replaced",
            Action::Nothing => "kept",
        }
    }

    /// The word for it in a plan.
    pub(crate) fn planned(self) -> &'static str {
        match self {
            Action::Create => "create",
            Action::Read => "read",
            Action::Update => "change",
            Action::Delete => "delete",
            Action::Replace => "replace",
            Action::Nothing => "keep",
        }
    }
}

/// An error or a warning.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub(crate) struct Diagnostic {
    pub(crate) severity: String,
    pub(crate) summary: String,
    #[serde(default)]
    pub(crate) detail: String,
    /// The resource that it is about; empty if it is about none.
    #[serde(default)]
    pub(crate) address: String,
    #[serde(default)]
    pub(crate) snippet: Option<Snippet>,
}

impl Diagnostic {
    pub(crate) fn is_error(&self) -> bool {
        self.severity == "error"
    }
}

/// The source that a diagnostic is about.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub(crate) struct Snippet {
    #[serde(default)]
    pub(crate) code: String,
}

/// What happened.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Event {
    /// A change that is planned.
    Planned {
        address: String,
        action: Action,
    },
    Started {
        address: String,
        action: Action,
    },
    Finished {
        address: String,
        action: Action,
    },
    Failed {
        address: String,
    },
    /// A line of what a provisioner runs.
    Output {
        address: String,
        text: String,
    },
    Diagnostic(Diagnostic),
    /// Something that is no JSON.
    Text(String),
    /// Nothing that is of interest here.
    Other,
}

#[derive(Deserialize)]
struct Line {
    #[serde(rename = "type", default)]
    kind: String,
    change: Option<Hook>,
    hook: Option<Hook>,
    diagnostic: Option<Diagnostic>,
}

#[derive(Deserialize)]
struct Hook {
    resource: Resource,
    action: Option<Action>,
    output: Option<String>,
}

#[derive(Deserialize)]
struct Resource {
    addr: String,
}

/// Reads a line.
pub(crate) fn parse(line: &str) -> Event {
    let Ok(read) = serde_json::from_str::<Line>(line) else {
        return match line.trim() {
            text if text.is_empty() || text.starts_with('{') => Event::Other,
            text => Event::Text(text.to_owned()),
        };
    };
    let hook =
        |hook: Option<Hook>| hook.map(|hook| (hook.resource.addr, hook.action.unwrap_or(Action::Nothing)));
    let found = match read.kind.as_str() {
        "planned_change" => hook(read.change).map(|(address, action)| Event::Planned { address, action }),
        "apply_start" => hook(read.hook).map(|(address, action)| Event::Started { address, action }),
        "apply_complete" => hook(read.hook).map(|(address, action)| Event::Finished { address, action }),
        "apply_errored" => hook(read.hook).map(|(address, _)| Event::Failed { address }),
        "provision_progress" => read
            .hook
            .map(|hook| Event::Output { address: hook.resource.addr, text: hook.output.unwrap_or_default() }),
        "diagnostic" => read.diagnostic.map(Event::Diagnostic),
        _ => None,
    };
    found.unwrap_or(Event::Other)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(kind: &str, rest: &str) -> String {
        format!(r#"{{"@level":"info","@module":"terraform.ui","type":"{kind}",{rest}}}"#)
    }

    const RESOURCE: &str = r#""resource":{"addr":"terraform_data.worker[1]","resource_key":1}"#;

    #[test]
    fn resources_come_and_go() {
        let address = "terraform_data.worker[1]".to_owned();
        for (kind, field, event) in [
            ("planned_change", "change", Event::Planned { address: address.clone(), action: Action::Create }),
            ("apply_start", "hook", Event::Started { address: address.clone(), action: Action::Create }),
            ("apply_complete", "hook", Event::Finished { address: address.clone(), action: Action::Create }),
            ("apply_errored", "hook", Event::Failed { address: address.clone() }),
        ] {
            let text = line(kind, &format!(r#""{field}":{{{RESOURCE},"action":"create"}}"#));
            assert_eq!(parse(&text), event, "{text}");
        }
    }

    #[test]
    fn lines_of_provisioners_are_read() {
        let output = line("provision_progress", &format!(r#""hook":{{{RESOURCE},"output":"TASK [a]"}}"#));
        let address = "terraform_data.worker[1]".to_owned();
        assert_eq!(parse(&output), Event::Output { address, text: "TASK [a]".to_owned() });
    }

    #[test]
    fn errors_carry_their_resource() {
        let text = line(
            "diagnostic",
            r#""diagnostic":{"severity":"error","summary":"S","detail":"D","address":"a.b","snippet":{"code":"c"}}"#,
        );
        let Event::Diagnostic(read) = parse(&text) else { panic!("a diagnostic") };
        assert!(read.is_error());
        assert_eq!((read.summary.as_str(), read.detail.as_str(), read.address.as_str()), ("S", "D", "a.b"));
    }

    #[test]
    fn what_is_not_known_is_no_trouble() {
        assert_eq!(parse(&line("something_new", r#""hook":{}"#)), Event::Other);
        assert_eq!(parse(&line("refresh_start", &format!(r#""hook":{{{RESOURCE}}}"#))), Event::Other);
        assert_eq!(parse("panic: runtime error"), Event::Text("panic: runtime error".to_owned()));
        assert_eq!(parse("  "), Event::Other);
        let odd = line("planned_change", &format!(r#""change":{{{RESOURCE},"action":"forget"}}"#));
        let address = "terraform_data.worker[1]".to_owned();
        assert_eq!(parse(&odd), Event::Planned { address, action: Action::Nothing });
    }
}
