//! What Terraform and OpenStack say, and what that means.

use crate::cause::machine;
use crate::cause::{Cause, Rule, explained};
use crate::terraform::event::Diagnostic;

/// How the cloud says that it does not have something.
const MISSING: &[&str] = &["could not find any", "no results", "not found", "could not be found"];

const RULES: [Rule; 14] = [
    Rule {
        any: &["error acquiring the state lock"],
        all: &[],
        what: "another run holds the lock on this cluster's state",
        fix: "wait for it, or end it; if it was killed and the lock is in a remote backend: terraform force-unlock ID, \
              with the ID from above",
    },
    Rule {
        any: &[
            "failed to query available provider packages",
            "failed to resolve provider packages",
            "failed to install provider",
        ],
        all: &[],
        what: "Terraform cannot get the OpenStack provider",
        fix: "it needs the registry, a mirror (terraform providers mirror) or a copy in ~/.terraform.d/plugins",
    },
    Rule {
        any: &["quota", "limitexceeded", "limit exceeded"],
        all: &[],
        what: "the project's quota does not allow it",
        fix: "ask for fewer or smaller machines in resources.auto.tfvars, free something (openstack server list), or \
              ask whoever runs the cloud for more; openstack quota show lists what there is",
    },
    Rule {
        any: &["no valid host was found"],
        all: &[],
        what: "the cloud has no room for a machine of this size",
        fix: "choose another flavour in resources.auto.tfvars, or try again later: ronde cluster up goes on from here",
    },
    Rule {
        any: &["authentication failed", "requires authentication", "invalid username", "unauthorized", "401"],
        all: &[],
        what: "the cloud does not accept the login",
        fix: "check user_name and password in auth_data.auto.tfvars, and project and user_domain_name in \
              resources.auto.tfvars; application credentials do not expire with the password",
    },
    Rule {
        any: &["forbidden", "403", "policy doesn't allow", "not authorized"],
        all: &[],
        what: "the login lacks a right",
        fix: "the user needs the member role in the project; openstack role assignment list --names shows the roles",
    },
    Rule {
        any: &["x509", "certificate signed by unknown authority", "tls: "],
        all: &[],
        what: "the cloud's certificate is not trusted here",
        fix: "name its authority's file: cacert_file in openstack_provider of resources.auto.tfvars",
    },
    Rule {
        any: &[
            "no such host",
            "connection refused",
            "i/o timeout",
            "no route to host",
            "network is unreachable",
        ],
        all: &["http"],
        what: "the cloud's API cannot be reached from here",
        fix: "check auth_url in resources.auto.tfvars, and that this machine reaches it: curl the address",
    },
    Rule {
        any: &[
            "required plugins are not installed",
            "inconsistent dependency lock file",
            "module not installed",
        ],
        all: &[],
        what: "the folder is not initialised for this Terraform",
        fix: "delete .terraform and .terraform.lock.hcl in the folder, and run it again",
    },
    Rule {
        any: &[
            "already associated",
            "already in use",
            "is in use",
            "externalipaddressexhausted",
            "no more ip addresses",
        ],
        all: &["ip"],
        what: "the public address is not free",
        fix: "give another one (public_ip in resources.auto.tfvars), or \"\" to have one allocated",
    },
    Rule {
        any: MISSING,
        all: &["image"],
        what: "the cloud has no such image",
        fix: "openstack image list shows those it has; write the name into image_name of resources.auto.tfvars",
    },
    Rule {
        any: MISSING,
        all: &["flavor"],
        what: "the cloud has no such flavour",
        fix: "openstack flavor list shows those it has; write the name into flavor_name of resources.auto.tfvars",
    },
    Rule {
        any: MISSING,
        all: &["keypair"],
        what: "the cloud has no such key pair",
        fix: "openstack keypair list shows yours; or give the key itself: public_key in resources.auto.tfvars",
    },
    Rule {
        any: MISSING,
        all: &["network"],
        what: "the cloud has no such network or address",
        fix: "openstack network list and openstack floating ip list show what there is; correct resources.auto.tfvars",
    },
];

/// What an error of Terraform means.
pub(crate) fn of(diagnostic: &Diagnostic) -> Cause {
    if diagnostic.summary.contains("Invalid value for variable") || is_condition(&diagnostic.summary) {
        return refused(diagnostic);
    }
    if let Some((_, output)) = diagnostic.detail.split_once(". Output: ") {
        return of_output(&diagnostic.address, output);
    }
    let mut words = diagnostic.summary.clone();
    if !diagnostic.detail.trim().is_empty() {
        words = format!("{words}: {}", diagnostic.detail.trim());
    }
    let text = format!("{words} {}", diagnostic.address);
    let at = match diagnostic.address.as_str() {
        "" => String::new(),
        address => format!("{address}: "),
    };
    explained(&RULES, &text, &format!("{at}{words}"))
}

/// What a script that Terraform ran has printed. It works on machines, not on the cloud; ours end with an error and a hint.
fn of_output(address: &str, output: &str) -> Cause {
    let marked = |mark: &str| output.lines().rev().find_map(|line| line.trim().strip_prefix(mark));
    match (marked("error: "), marked("hint: ")) {
        (Some(error), Some(hint)) => Cause { what: error.to_owned(), fix: Some(hint.to_owned()) },
        _ => {
            let last: Vec<&str> = output.lines().rev().take(8).collect();
            let last: Vec<&str> = last.into_iter().rev().collect();
            machine::of_text(output, &format!("{address}:\n{}", last.join("\n")))
        }
    }
}

/// What else Terraform has printed, such as why it does not start.
pub(crate) fn of_text(text: &str) -> Cause {
    explained(&RULES, text, text)
}

fn is_condition(summary: &str) -> bool {
    ["precondition failed", "postcondition failed", "Check block assertion failed"]
        .iter()
        .any(|words| summary.contains(words))
}

/// A value that the configuration itself refuses: its message is written for people.
fn refused(diagnostic: &Diagnostic) -> Cause {
    let message = diagnostic.detail.split("\n\nThis was checked by").next().unwrap_or_default().trim();
    let code = diagnostic.snippet.as_ref().map_or("", |snippet| snippet.code.as_str());
    let variable = code.trim().strip_prefix("variable \"").and_then(|rest| rest.split('"').next());
    // What is checked against the cloud says itself what to do.
    let fix = variable.map(|variable| format!("correct {variable} in resources.auto.tfvars"));
    Cause { what: message.to_owned(), fix }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::terraform::event::Snippet;

    fn error(summary: &str, detail: &str, address: &str) -> Diagnostic {
        Diagnostic {
            severity: "error".to_owned(),
            summary: summary.to_owned(),
            detail: detail.to_owned(),
            address: address.to_owned(),
            snippet: None,
        }
    }

    #[test]
    fn known_errors_come_with_cause_and_fix() {
        let machine = "openstack_compute_instance_v2.worker[1]";
        for (summary, address, what, fix) in [
            (
                "Error creating openstack_compute_instance_v2: Expected HTTP response code [200 201 202] when accessing \
                 [POST https://nova.example/v2.1/servers], but got 403 instead: {\"forbidden\": {\"code\": 403, \
                 \"message\": \"Quota exceeded for cores: Requested 8, but already used 16 of 20 cores\"}}",
                machine,
                "quota",
                "openstack quota show",
            ),
            (
                "Error waiting for instance (x) to become ready: unexpected state 'ERROR', wanted target 'ACTIVE'. \
                 last error: No valid host was found. There are not enough hosts available.",
                machine,
                "no room",
                "another flavour",
            ),
            (
                "Error creating OpenStack compute client: Authentication failed",
                "",
                "does not accept the login",
                "auth_data.auto.tfvars",
            ),
            (
                "One or more errors: Post \"https://keystone.example:5000/v3/auth/tokens\": dial tcp: lookup \
                 keystone.example: no such host",
                "",
                "cannot be reached",
                "auth_url",
            ),
            (
                "Post \"https://k:5000/v3/auth/tokens\": x509: certificate signed by unknown authority",
                "",
                "certificate",
                "cacert_file",
            ),
            (
                "Your query returned no results. Please change your search criteria and try again.",
                "data.openstack_images_image_v2.master",
                "no such image",
                "openstack image list",
            ),
            (
                "Your query returned no results.",
                "data.openstack_compute_flavor_v2.worker",
                "flavour",
                "flavor list",
            ),
            (
                "Error associating: Floating IP 203.0.113.7 is already associated",
                "x",
                "not free",
                "public_ip",
            ),
            ("Error acquiring the state lock", "", "lock", "force-unlock"),
            ("Failed to query available provider packages", "", "provider", "mirror"),
        ] {
            let cause = of(&error(summary, "", address));
            assert!(cause.what.contains(what), "{summary}: {cause:?}");
            assert!(cause.what.contains(summary), "its own words are kept: {cause:?}");
            assert!(cause.fix.as_ref().is_some_and(|text| text.contains(fix)), "{summary}: {cause:?}");
        }
    }

    #[test]
    fn an_error_nobody_knows_is_shown_as_it_is() {
        let cause = of(&error("Strange", "It went wrong.", "a.b"));
        assert_eq!(cause, Cause { what: "a.b: Strange: It went wrong.".to_owned(), fix: None });
    }

    #[test]
    fn refused_values_name_the_variable_and_its_file() {
        let detail = "admin_cidr is still the placeholder.\n\nThis was checked by the validation rule at main.tf:4,3-13.";
        let mut diagnostic = error("Invalid value for variable", detail, "");
        diagnostic.snippet = Some(Snippet { code: "variable \"admin_cidr\" {".to_owned() });
        let cause = of(&diagnostic);
        assert_eq!(cause.what, "admin_cidr is still the placeholder.");
        assert_eq!(cause.fix.as_deref(), Some("correct admin_cidr in resources.auto.tfvars"));
        let condition =
            error("Resource precondition failed", "The project's quota is too small. Ask for more.", "a.b");
        let expected = "The project's quota is too small. Ask for more.".to_owned();
        assert_eq!(of(&condition), Cause { what: expected, fix: None });
    }

    #[test]
    fn scripts_say_themselves_what_is_wrong() {
        let detail = "Error running command 'sh ./await-machine': exit status 1. Output: error: ronde-master was not \
                      reached in 900 s\n  ssh: timed out\nhint: check that admin_cidr holds your address\n";
        let cause = of(&error("local-exec provisioner error", detail, "terraform_data.ready[0]"));
        assert_eq!(cause.what, "ronde-master was not reached in 900 s");
        assert_eq!(cause.fix.as_deref(), Some("check that admin_cidr holds your address"));
        let other = "Error running command 'x': exit status 2. Output: one\ntwo\n";
        let cause = of(&error("local-exec provisioner error", other, "a.b"));
        assert_eq!(cause, Cause { what: "a.b:\none\ntwo".to_owned(), fix: None });
    }

    #[test]
    fn what_a_script_prints_is_not_taken_for_the_cloud_s_word() {
        let detail = "Error running command 'x': exit status 2. Output: #9 sha256:401403\nimage: not found\n";
        assert_eq!(of(&error("local-exec provisioner error", detail, "a.b")).fix, None);
        // Nor is a number in a name.
        assert_eq!(of(&error("Error deleting port 403-a4401", "", "a.b")).fix, None);
    }
}
