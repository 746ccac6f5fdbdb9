//! What is said for texts that OpenSSH 9.2 really wrote.

use std::io;
use std::path::PathBuf;

use super::*;
use crate::ssh::refusal::cannot_start;

fn target() -> Target {
    Target {
        user: "anna".to_owned(),
        name: "gpu2".to_owned(),
        port: 12345,
        identities: Vec::new(),
        known_hosts: Vec::new(),
        alias: None,
        proxied: false,
        patience: 10,
    }
}

fn options() -> Ssh {
    Ssh { port: Some(12345), ..Ssh::default() }
}

/// What is known about a login to gpu2 at port 12345 that ended with 255.
fn attempt<'a>(target: &'a Target, options: &'a Ssh, said: &'a str) -> Attempt<'a> {
    Attempt {
        host: "gpu2",
        options,
        target,
        address: Some("10.0.0.12".parse().expect("an address")),
        keys: Vec::new(),
        host_keys: Vec::new(),
        said,
        status: Some(255),
    }
}

fn explained(said: &str) -> Refusal {
    attempt(&target(), &options(), said).refusal()
}

/// Compares the kind and every line.
fn assert_says(refusal: &Refusal, kind: RefusalKind, text: &str) {
    assert_eq!(refusal.render(), text);
    assert_eq!(refusal.kind, kind);
}

const CHANGED: &str = "@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@\n\
@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @\n\
@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@\n\
IT IS POSSIBLE THAT SOMEONE IS DOING SOMETHING NASTY!\n\
Someone could be eavesdropping on you right now (man-in-the-middle attack)!\n\
It is also possible that a host key has just been changed.\n\
The fingerprint for the ED25519 key sent by the remote host is\n\
SHA256:3zaMRO3L6n3J5gyWm7KdF9jaTWcdvd0cGzbp1hfu8bQ.\n\
Please contact your system administrator.\n\
Add correct host key in /home/anna/.ssh/known_hosts to get rid of this message.\n\
Offending ED25519 key in /home/anna/.ssh/known_hosts:5\n  \
remove with:\n  \
ssh-keygen -f \"/home/anna/.ssh/known_hosts\" -R \"[gpu2]:12345\"\n\
Host key for [gpu2]:12345 has changed and you have requested strict checking.\n\
Host key verification failed.\n";

#[test]
fn an_unknown_host_key_shows_its_fingerprint() {
    for said in [
        "Host key verification failed.\n",
        "No ED25519 host key is known for [gpu2]:12345 and you have requested strict checking.\r\n\
         Host key verification failed.\r\n",
    ] {
        let (target, options) = (target(), options());
        let key = |kind: &str, fingerprint: &str| HostKey {
            kind: kind.to_owned(),
            fingerprint: fingerprint.to_owned(),
            key: String::new(),
        };
        let host_keys = vec![
            key("ED25519", "SHA256:mVPwvezndPv/ARoIadVY98vAC0g+P/5633yTC4d/wXE"),
            key("RSA", "SHA256:another"),
        ];
        assert_says(
            &Attempt { host_keys, ..attempt(&target, &options, said) }.refusal(),
            RefusalKind::UnknownHostKey,
            "error: gpu2 (10.0.0.12, port 12345) presented a host key this machine does not know\n  \
             ED25519  SHA256:mVPwvezndPv/ARoIadVY98vAC0g+P/5633yTC4d/wXE\n\
             hint: compare it with the key on gpu2 (ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub), then\n        \
             ronde setup-ssh -H gpu2 -p 12345\n      \
             or accept new keys once:  ronde run --accept-new-host-keys …\n",
        );
    }
}

#[test]
fn a_host_that_shows_no_keys_is_to_be_looked_at_by_hand() {
    assert_says(
        &explained("Host key verification failed.\n"),
        RefusalKind::UnknownHostKey,
        "error: gpu2 (10.0.0.12, port 12345) presented a host key this machine does not know\n\
         hint: log in once by hand and compare the key it shows:\n        \
         ssh -p 12345 gpu2 true\n      \
         or accept new keys once:  ronde run --accept-new-host-keys …\n",
    );
}

#[test]
fn a_changed_host_key_names_file_and_line_and_warns() {
    // Some of its lines end with a carriage return, depending on where they go.
    let refusal = explained(&CHANGED.replace('\n', "\r\n"));
    assert_eq!(refusal, explained(CHANGED));
    assert_says(
        &refusal,
        RefusalKind::ChangedHostKey,
        "error: gpu2 (10.0.0.12, port 12345) presented another host key than the one this machine knows\n  \
         ED25519  SHA256:3zaMRO3L6n3J5gyWm7KdF9jaTWcdvd0cGzbp1hfu8bQ\n  \
         the key known so far is in /home/anna/.ssh/known_hosts, line 5\n\
         hint: if gpu2 was set up anew, compare it with the key on gpu2 \
         (ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub),\n      \
         and forget the old one:\n        \
         ssh-keygen -f \"/home/anna/.ssh/known_hosts\" -R \"[gpu2]:12345\"\n        \
         ronde setup-ssh -H gpu2 -p 12345\n      \
         if nobody changed it, somebody may be listening in; do not go on\n",
    );
    let command = r#"ssh-keygen -f "/home/anna/.ssh/known_hosts" -R "[gpu2]:12345""#;
    assert_eq!(refusal.command.as_deref(), Some(command));
}

#[test]
fn a_refused_key_names_the_user_and_what_was_tried() {
    let (target, options) = (target(), options());
    let said = "anna@gpu2: Permission denied (publickey,password).\n";
    let key = |file: &str, locked| OwnKey { file: file.to_owned(), locked };
    let keys = vec![key("~/.ssh/id_ed25519", false), key("~/.ssh/id_rsa", false)];
    assert_says(
        &Attempt { keys, ..attempt(&target, &options, said) }.refusal(),
        RefusalKind::KeyRefused,
        "error: gpu2 (10.0.0.12, port 12345) refused the key of user anna (tried ~/.ssh/id_ed25519, ~/.ssh/id_rsa)\n\
         hint: install it there:\n        \
         ronde setup-ssh -H gpu2 -p 12345\n      \
         or log in as somebody else: -H USER@gpu2\n",
    );
    assert_says(
        &attempt(&target, &options, said).refusal(),
        RefusalKind::KeyRefused,
        "error: gpu2 (10.0.0.12, port 12345) wants a key of user anna, and none was found here\n\
         hint: make a key and install it there:\n        \
         ronde setup-ssh -H gpu2 -p 12345\n      \
         or log in as somebody else: -H USER@gpu2\n",
    );
    let keys = vec![key("~/.ssh/id_ed25519", true)];
    assert_says(
        &Attempt { keys, ..attempt(&target, &options, said) }.refusal(),
        RefusalKind::KeyRefused,
        "error: gpu2 (10.0.0.12, port 12345) refused the key of user anna (tried ~/.ssh/id_ed25519)\n  \
         ~/.ssh/id_ed25519 has a passphrase, which nobody can type while a job starts\n\
         hint: if it is the right key, unlock it for this session:\n        \
         ssh-add ~/.ssh/id_ed25519\n      \
         otherwise install a key there:\n        \
         ronde setup-ssh -H gpu2 -p 12345\n      \
         or log in as somebody else: -H USER@gpu2\n",
    );
}

#[test]
fn a_server_without_keys_is_told_from_one_that_refused_the_key() {
    assert_says(
        &explained("anna@gpu2: Permission denied (password).\r\n"),
        RefusalKind::PasswordOnly,
        "error: gpu2 (10.0.0.12, port 12345) takes no keys, only passwords, for user anna; a launcher cannot type \
         one\n  \
         ssh: anna@gpu2: Permission denied (password).\n\
         hint: let its sshd take keys (PubkeyAuthentication yes in /etc/ssh/sshd_config), then\n        \
         ronde setup-ssh -H gpu2 -p 12345\n",
    );
}

#[test]
fn too_many_keys_are_answered_with_how_to_offer_one() {
    let options = Ssh { identity: Some(PathBuf::from("/keys/my key")), ..options() };
    let said = "Received disconnect from 10.0.0.12 port 12345:2: Too many authentication failures\n\
                Disconnected from 10.0.0.12 port 12345\n";
    assert_says(
        &attempt(&target(), &options, said).refusal(),
        RefusalKind::TooManyKeys,
        "error: gpu2 (10.0.0.12, port 12345) ended the login of user anna after too many keys that were not the \
         right one\n\
         hint: offer the right one only:\n        \
         ronde run -i '/keys/my key' --ssh-args='-o IdentitiesOnly=yes' …\n",
    );
}

#[test]
fn a_host_that_cannot_be_reached_is_named_with_its_address_and_port() {
    assert_says(
        &explained("ssh: connect to host gpu2 port 12345: Connection refused\r\n"),
        RefusalKind::ConnectionRefused,
        "error: gpu2 (10.0.0.12, port 12345) refused the connection: nothing listens there\n\
         hint: is its sshd running, and is 12345 its port? To start one there:\n        \
         /usr/sbin/sshd -p 12345\n",
    );
    assert_says(
        &explained("ssh: connect to host gpu2 port 12345: Connection timed out\r\n"),
        RefusalKind::TimedOut,
        "error: gpu2 (10.0.0.12, port 12345) did not answer within 10 s\n\
         hint: is it up, and does a firewall let the port through? Try\n        \
         ssh -v -p 12345 gpu2 true\n",
    );
    assert_says(
        &explained("ssh: connect to host gpu2 port 12345: Network is unreachable\r\n"),
        RefusalKind::NoRoute,
        "error: gpu2 (10.0.0.12, port 12345) cannot be reached: it is down, or there is no route to it\n\
         hint: is the address right, and the network up? Look at\n        \
         ip route get 10.0.0.12\n",
    );
    assert_says(
        &explained(
            "Connection timed out during banner exchange\r\nConnection to 10.0.0.12 port 12345 timed out\r\n",
        ),
        RefusalKind::Silent,
        "error: gpu2 (10.0.0.12, port 12345) accepted the connection, but said nothing as sshd would\n\
         hint: is this the port of sshd, and is the host not overloaded? Try\n        \
         ssh -v -p 12345 gpu2 true\n",
    );
}

#[test]
fn without_a_port_flag_another_port_is_suggested() {
    let (target, options) = (Target { port: 22, ..target() }, Ssh::default());
    let said = "ssh: connect to host gpu2 port 22: Connection refused\r\n";
    let text = attempt(&target, &options, said).refusal().render();
    assert!(text.ends_with("\n      to use another port:  ronde run -p PORT …\n"), "{text}");
}

#[test]
fn a_name_that_is_not_known_is_told_from_a_name_server_that_is_gone() {
    let (target, options) = (target(), options());
    let said = "ssh: Could not resolve hostname gpu2: Name or service not known\r\n";
    assert_says(
        &Attempt { address: None, ..attempt(&target, &options, said) }.refusal(),
        RefusalKind::NameNotFound,
        "error: there is no host called \"gpu2\"\n\
         hint: is it spelled right? This machine looks it up with\n        \
         getent ahosts gpu2\n      \
         an address, or a line in /etc/hosts or ~/.ssh/config, works as well\n",
    );
    let said = "ssh: Could not resolve hostname gpu2: Temporary failure in name resolution\r\n";
    let refusal = Attempt { address: None, ..attempt(&target, &options, said) }.refusal();
    assert_eq!(refusal.kind, RefusalKind::NoNameServer);
    assert!(refusal.is_retryable());
}

#[test]
fn an_account_that_runs_nothing_is_told_so() {
    let (target, options) = (target(), options());
    let said = "Could not chdir to home directory /home/anna: No such file or directory\n\
                This account is currently not available.\n";
    assert_says(
        &Attempt { status: Some(1), ..attempt(&target, &options, said) }.refusal(),
        RefusalKind::NoShell,
        "error: gpu2 (10.0.0.12, port 12345) let user anna in, but starts no program for them\n  \
         ssh: Could not chdir to home directory /home/anna: No such file or directory\n  \
         ssh: This account is currently not available.\n\
         hint: if the account has no shell, give it one there:\n        \
         sudo usermod -s /bin/bash anna\n      \
         otherwise look for ForceCommand and MaxSessions in its /etc/ssh/sshd_config\n",
    );
    for said in
        ["channel 0: open failed: connect failed: open failed\r\n", "exec request failed on channel 0\r\n"]
    {
        assert_eq!(explained(said).kind, RefusalKind::NoShell, "{said}");
    }
}

#[test]
fn a_key_that_others_can_read_is_named() {
    let said = "@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@\n\
        @         WARNING: UNPROTECTED PRIVATE KEY FILE!          @\n\
        @@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@\n\
        Permissions 0644 for '/keys/my key' are too open.\n\
        It is required that your private key files are NOT accessible by others.\n\
        This private key will be ignored.\n\
        Load key \"/keys/my key\": bad permissions\n\
        anna@gpu2: Permission denied (publickey).\n";
    assert_says(
        &explained(said),
        RefusalKind::IdentityPermissions,
        "error: /keys/my key can be read by others, so ssh does not use it to log in to gpu2\n\
         hint: keep it to yourself:\n        \
         chmod 600 '/keys/my key'\n",
    );
}

#[test]
fn a_configuration_that_ssh_cannot_read_is_quoted() {
    for (said, message, hint) in [
        (
            "/home/anna/.ssh/config: line 7: Bad configuration option: foobar\r\n\
             /home/anna/.ssh/config: terminating, 1 bad configuration options\r\n",
            "/home/anna/.ssh/config: line 7: Bad configuration option: foobar",
            "correct that line, or take it out",
        ),
        (
            "/home/anna/.ssh/config line 1: Bad port 'abc'.\r\n\
             /home/anna/.ssh/config: terminating, 1 bad configuration options\r\n",
            "/home/anna/.ssh/config line 1: Bad port 'abc'.",
            "correct that line, or take it out",
        ),
        (
            "command-line: line 0: Bad configuration option: foo\r\n",
            "command-line: line 0: Bad configuration option: foo",
            "correct --ssh-args",
        ),
        (
            "unknown option -- Z\nusage: ssh [-46AaCfGgKkMNnqsTtVvXxYy]\n",
            "unknown option -- Z",
            "correct --ssh-args",
        ),
    ] {
        assert_says(
            &explained(said),
            RefusalKind::BadConfiguration,
            &format!("error: ssh does not understand how to log in to gpu2: {message}\nhint: {hint}\n"),
        );
    }
    let owner = explained("Bad owner or permissions on /home/anna/.ssh/config\r\n");
    assert_eq!(owner.kind, RefusalKind::BadConfiguration);
    let command = "chmod go-w /home/anna/.ssh/config; chown $(id -u) /home/anna/.ssh/config";
    assert_eq!(owner.command.as_deref(), Some(command));
}

#[test]
fn a_server_that_drops_connections_may_be_asked_again() {
    let said = "kex_exchange_identification: Connection closed by remote host\r\n\
                Connection closed by 10.0.0.12 port 12345\r\n";
    let refusal = explained(said);
    assert_says(
        &refusal,
        RefusalKind::Dropped,
        "error: gpu2 (10.0.0.12, port 12345) closed the connection before the login\n  \
         ssh: kex_exchange_identification: Connection closed by remote host\n  \
         ssh: Connection closed by 10.0.0.12 port 12345\n\
         hint: its sshd may have too many logins at once (MaxStartups), or may not want this machine; ask it with\n        \
         ssh -v -p 12345 gpu2 true\n",
    );
    assert!(refusal.is_retryable());
    let reset = "kex_exchange_identification: read: Connection reset by peer\r\nConnection reset by 10.0.0.12 port 1\r\n";
    assert!(explained(reset).is_retryable());
}

#[test]
fn what_failed_on_the_way_is_not_blamed_on_the_host() {
    let (target, options) = (Target { proxied: true, ..target() }, options());
    let said = "ssh: connect to host gate port 22: Connection refused\r\n\
                kex_exchange_identification: Connection closed by remote host\r\n\
                Connection closed by UNKNOWN port 65535\r\n";
    let refusal = Attempt { address: None, ..attempt(&target, &options, said) }.refusal();
    assert_says(
        &refusal,
        RefusalKind::Proxy,
        "error: the way to gpu2 (port 12345) through another host failed\n  \
         ssh: ssh: connect to host gate port 22: Connection refused\n  \
         ssh: kex_exchange_identification: Connection closed by remote host\n  \
         ssh: Connection closed by UNKNOWN port 65535\n\
         hint: try it by hand:\n        \
         ssh -p 12345 gpu2 true\n",
    );
    assert!(!refusal.is_retryable());
}

#[test]
fn what_a_login_shell_said_is_shown() {
    let (target, options) = (target(), options());
    let said = "bash: line 1: no-such-command: command not found\n";
    assert_says(
        &Attempt { status: Some(127), ..attempt(&target, &options, said) }.refusal(),
        RefusalKind::Remote,
        "error: the login shell of gpu2 (10.0.0.12, port 12345) ended with status 127 instead of starting ronde\n  \
         ssh: bash: line 1: no-such-command: command not found\n\
         hint: try it by hand:\n        \
         ssh -p 12345 gpu2 true\n",
    );
}

#[test]
fn whatever_else_ssh_says_is_shown_as_it_is() {
    let lines: Vec<String> = (0..20).map(|line| format!("line {line}")).collect();
    let refusal = explained(&lines.join("\n"));
    assert_eq!(refusal.kind, RefusalKind::Other);
    assert_eq!(refusal.details.first().map(String::as_str), Some("ssh: line 14"));
    assert_eq!(refusal.details.last().map(String::as_str), Some("ssh: line 19"));
    let (target, options) = (target(), options());
    let killed = Attempt { status: None, ..attempt(&target, &options, "") }.refusal().render();
    assert!(killed.contains("ssh was killed while it logged in to gpu2"), "{killed}");
    assert!(killed.contains("it said nothing"), "{killed}");
    for (said, kind) in [
        (
            "Unable to negotiate with 10.0.0.12 port 22: no matching key exchange method found.",
            RefusalKind::NoAgreement,
        ),
        ("Connection to 10.0.0.12 closed by remote host.", RefusalKind::Lost),
        ("client_loop: send disconnect: Broken pipe", RefusalKind::Lost),
    ] {
        assert_eq!(explained(said).kind, kind, "{said}");
    }
}

#[test]
fn ssh_that_is_not_installed_can_be() {
    assert_says(
        &cannot_start("ssh", &io::Error::from(io::ErrorKind::NotFound)),
        RefusalKind::NoSsh,
        "error: cannot start ssh on this machine: entity not found\n\
         hint: install it, on Debian and Ubuntu with\n        \
         apt-get install openssh-client\n      \
         or name another program with RONDE_SSH\n",
    );
}
