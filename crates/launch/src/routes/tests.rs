//! Decisions from tables of who reached whom.

use super::*;

/// A host with interfaces given as `"eth0 10.0.0.1"`.
fn host(name: &str, interfaces: &[&str]) -> Reachable {
    let interface = |text: &&str| {
        let (name, address) = text.split_once(' ').expect("a name and an address");
        Interface { name: name.to_owned(), address: address.parse().expect("an address") }
    };
    Reachable { name: name.to_owned(), interfaces: interfaces.iter().map(interface).collect(), relay: None }
}

/// An attempt to reach a host. The outcome is a number of microseconds, or why not.
fn tried(host: usize, address: &str, outcome: &str) -> Attempt {
    let outcome = match outcome.parse() {
        Ok(time) => Ok(Duration::from_micros(time)),
        Err(_) => Err(outcome.to_owned()),
    };
    let address = SocketAddr::new(address.parse().expect("an address"), 4000);
    Attempt { host, address, scope: 0, door: false, outcome }
}

fn at_door(host: usize, address: &str, outcome: &str) -> Attempt {
    Attempt { door: true, ..tried(host, address, outcome) }
}

fn texts(choice: &Choice) -> Vec<(String, String)> {
    choice.hosts.iter().map(|ways| (ways.listen.to_string(), ways.text())).collect()
}

/// Compares what hosts are told, and makes sure that of every two one dials and the other waits.
fn expect(hosts: &[Reachable], choice: &Choice, expected: &[(&str, &str)]) {
    let told = texts(choice);
    let told: Vec<(&str, &str)> =
        told.iter().map(|(listen, text)| (listen.as_str(), text.as_str())).collect();
    assert_eq!(told, expected);
    let awaits = |from: usize, to: usize| {
        let routes = &choice.hosts[from].routes;
        let (_, route) = routes.iter().find(|(name, _)| *name == hosts[to].name).expect("a route");
        *route == Route::Await
    };
    for one in 0..hosts.len() {
        for other in 0..one {
            assert_ne!(awaits(one, other), awaits(other, one), "{one} and {other}");
        }
    }
}

#[test]
fn one_host_stays_by_itself() {
    let hosts = [host("h1", &["eth0 10.0.0.1"])];
    let choice = choose(&hosts, &[Vec::new()]).expect("nothing to decide");
    expect(&hosts, &choice, &[("127.0.0.1", "")]);
    assert!(choice.lines.is_empty() && choice.relayed.is_empty());
}

#[test]
fn later_hosts_dial_earlier_ones_at_the_address_that_all_reach() {
    let hosts = [
        host("h1", &["docker0 172.17.0.1", "eth0 10.0.0.1"]),
        host("h2", &["docker0 172.17.0.1", "eth0 10.0.0.2"]),
        host("h3", &["ens3 10.0.0.3"]),
    ];
    let attempts = [
        vec![tried(1, "10.0.0.2", "80"), tried(2, "10.0.0.3", "90")],
        vec![
            tried(0, "172.17.0.1", "connection refused"),
            tried(0, "10.0.0.1", "80"),
            tried(2, "10.0.0.3", "70"),
        ],
        vec![
            tried(0, "172.17.0.1", "timed out"),
            tried(0, "10.0.0.1", "300"),
            tried(1, "172.17.0.1", "timed out"),
            tried(1, "10.0.0.2", "100"),
        ],
    ];
    let choice = choose(&hosts, &attempts).expect("all reach all");
    expect(
        &hosts,
        &choice,
        &[
            ("10.0.0.1", "h2=await;h3=await"),
            ("10.0.0.2", "h1=10.0.0.1;h3=await"),
            ("127.0.0.1", "h1=10.0.0.1;h2=10.0.0.2"),
        ],
    );
    let lines = [
        "h2 -> h1: 10.0.0.1 (eth0), 0.08 ms; 172.17.0.1 (docker0) ruled out: the dialing host has that address too",
        "h3 -> h1: 10.0.0.1 (eth0), 0.3 ms; 172.17.0.1 (docker0) ruled out: timed out",
        "h3 -> h2: 10.0.0.2 (eth0), 0.1 ms; 172.17.0.1 (docker0) ruled out: timed out",
    ];
    assert_eq!(choice.lines, lines);
}

#[test]
fn hosts_that_reach_another_in_the_same_way_share_a_line() {
    let hosts: Vec<Reachable> =
        (1..=6).map(|number| host(&format!("h{number}"), &[&format!("eth0 10.0.0.{number}")])).collect();
    let reach = |from: usize, to: usize| tried(to, &format!("10.0.0.{}", to + 1), &(from * 100).to_string());
    let attempts: Vec<Vec<Attempt>> =
        (0..6).map(|from| (0..6).filter(|&to| to != from).map(|to| reach(from, to)).collect()).collect();
    let choice = choose(&hosts, &attempts).expect("all reach all");
    assert_eq!(choice.lines.len(), 5);
    assert_eq!(choice.lines[0], "h2, h3, h4 and 2 more -> h1: 10.0.0.1 (eth0), 0.1 to 0.5 ms");
    assert_eq!(choice.lines[4], "h6 -> h5: 10.0.0.5 (eth0), 0.5 ms");
}

#[test]
fn a_much_shorter_way_is_preferred_and_else_the_first_interface() {
    let hosts = [host("h1", &["eth0 10.0.0.1", "ib0 10.1.0.1"]), host("h2", &[])];
    for (first, second, chosen) in
        [("900", "80", "10.0.0.1"), ("80", "900", "10.0.0.1"), ("5000", "80", "10.1.0.1")]
    {
        let attempts = [Vec::new(), vec![tried(0, "10.1.0.1", second), tried(0, "10.0.0.1", first)]];
        let choice = choose(&hosts, &attempts).expect("reached");
        expect(&hosts, &choice, &[(chosen, "h2=await"), ("127.0.0.1", &format!("h1={chosen}"))]);
    }
}

#[test]
fn an_address_that_all_reach_beats_a_faster_one_that_some_do_not() {
    let hosts = [host("h1", &["fast 10.1.0.1", "slow 10.0.0.1"]), host("h2", &[]), host("h3", &[])];
    let attempts = [
        Vec::new(),
        vec![tried(0, "10.1.0.1", "50"), tried(0, "10.0.0.1", "30000")],
        vec![tried(0, "10.1.0.1", "timed out"), tried(0, "10.0.0.1", "30000"), tried(1, "10.0.0.2", "50")],
    ];
    let choice = choose(&hosts, &attempts).expect("reached");
    assert_eq!(choice.hosts[0].listen.to_string(), "10.0.0.1");
    assert_eq!(choice.hosts[1].text(), "h1=10.0.0.1;h3=await");
}

#[test]
fn a_host_that_is_reached_at_different_addresses_listens_on_all() {
    let table = [
        ("10.0.0.1", "10.1.0.1", "0.0.0.0", "10.1.0.1"),
        ("10.0.0.1", "fd00::1", "::", "[fd00::1]"),
        // Translated on the way: nothing that could be listened at.
        ("203.0.113.7", "203.0.113.7", "0.0.0.0", "203.0.113.7"),
    ];
    for (one, other, listen, route) in table {
        let hosts = [
            host("h1", &["eth0 10.0.0.1", "eth1 10.1.0.1", "eth1 fd00::1"]),
            host("h2", &[]),
            host("h3", &[]),
        ];
        let attempts =
            [Vec::new(), vec![tried(0, one, "50")], vec![tried(0, other, "50"), tried(1, "10.0.0.2", "50")]];
        let choice = choose(&hosts, &attempts).expect("reached");
        assert_eq!(choice.hosts[0].listen.to_string(), listen);
        assert_eq!(choice.hosts[2].routes[0].1.to_string(), route);
    }
}

#[test]
fn where_only_one_direction_works_the_other_host_waits() {
    let hosts = [host("h1", &["eth0 10.0.0.1"]), host("h2", &["eth0 10.0.0.2"])];
    let attempts = [vec![tried(1, "10.0.0.2", "1500")], vec![tried(0, "10.0.0.1", "timed out")]];
    let choice = choose(&hosts, &attempts).expect("one direction");
    expect(&hosts, &choice, &[("127.0.0.1", "h2=10.0.0.2"), ("10.0.0.2", "h1=await")]);
    assert_eq!(
        choice.lines,
        ["h1 -> h2: 10.0.0.2 (eth0), 2 ms; h2 cannot dial h1: 10.0.0.1 (eth0): timed out"]
    );
}

#[test]
fn a_published_door_is_used_where_no_address_works() {
    let hosts = [host("c1", &["eth0 172.17.0.2"]), host("c2", &["eth0 172.17.0.2"])];
    let attempts = [
        vec![tried(1, "172.17.0.2", "connection refused"), at_door(1, "198.51.100.2", "400")],
        vec![tried(0, "172.17.0.2", "connection refused"), at_door(0, "198.51.100.1", "400")],
    ];
    let choice = choose(&hosts, &attempts).expect("doors");
    expect(&hosts, &choice, &[("127.0.0.1", "c2=await"), ("127.0.0.1", "c1=via:198.51.100.1:4000")]);
    let line = "c2 -> c1: through its door 198.51.100.1:4000, 0.4 ms; \
                172.17.0.2 (eth0) ruled out: the dialing host has that address too";
    assert_eq!(choice.lines, [line]);
    // An address in the other direction is better than a door in this one.
    let attempts = [vec![tried(1, "10.0.0.2", "400")], vec![at_door(0, "198.51.100.1", "400")]];
    let choice = choose(&hosts, &attempts).expect("an address");
    assert_eq!(texts(&choice)[0].1, "c2=10.0.0.2");
}

#[test]
fn what_cannot_be_reached_at_all_is_relayed_and_that_is_said() {
    let mut hosts = [host("h1", &["eth0 10.0.0.1"]), host("h2", &["eth0 10.0.0.2"])];
    let attempts =
        [vec![tried(1, "10.0.0.2", "timed out")], vec![tried(0, "10.0.0.1", "no route to that host")]];
    let relay: SocketAddr = "127.0.0.1:9000".parse().expect("an address");
    hosts[1].relay = Some(relay);
    let choice = choose(&hosts, &attempts).expect("a relay");
    expect(&hosts, &choice, &[("127.0.0.1", "h2=await"), ("127.0.0.1", "h1=via:127.0.0.1:9000")]);
    assert_eq!(choice.relayed, [(1, 0)]);
    let line = "h2 -> h1: relayed through the launcher, which is slow; 10.0.0.1 (eth0) ruled out: no route to that host; \
                h1 cannot dial h2: 10.0.0.2 (eth0): timed out";
    assert_eq!(choice.lines, [line]);
    // The other host's door to the relay does as well.
    hosts.swap(0, 1);
    hosts[0].name = "h1".to_owned();
    hosts[1].name = "h2".to_owned();
    assert_eq!(choose(&hosts, &attempts).expect("a relay").relayed, [(0, 1)]);
}

#[test]
fn without_a_relay_the_error_names_every_pair_and_everything_that_was_tried() {
    let hosts = [
        host("h1", &["eth0 10.0.0.1", "docker0 172.17.0.1"]),
        host("h2", &["eth0 10.0.0.2"]),
        host("h3", &[]),
    ];
    let attempts = [
        vec![tried(1, "10.0.0.2", "timed out")],
        vec![tried(0, "10.0.0.1", "timed out"), tried(0, "172.17.0.1", "another host answers there")],
        vec![tried(0, "10.0.0.1", "60"), tried(1, "10.0.0.2", "60")],
    ];
    let error = choose(&hosts, &attempts).expect_err("h1 and h2 are apart").to_string();
    let expected = "h1 and h2 cannot reach each other\n  \
                    h2 -> h1: 10.0.0.1 (eth0): timed out; 172.17.0.1 (docker0): another host answers there\n  \
                    h1 -> h2: 10.0.0.2 (eth0): timed out";
    assert_eq!(error, expected);

    let lonely: Vec<Reachable> = (0..5).map(|number| host(&format!("h{number}"), &[])).collect();
    let error = choose(&lonely, &vec![Vec::new(); 5]).expect_err("nobody reaches anybody").to_string();
    assert!(error.contains("h1 -> h0: it has no address to dial"), "{error}");
    assert!(error.ends_with("and 4 more pairs"), "{error}");
}

#[test]
fn an_address_of_a_link_is_dialled_through_the_interface_on_which_it_works() {
    let hosts = [host("h1", &["eth0 fe80::1"]), host("h2", &["eth0 fe80::2"])];
    let scoped = |scope, outcome| Attempt { scope, ..tried(0, "fe80::1", outcome) };
    let attempts = [Vec::new(), vec![scoped(2, "timed out"), scoped(3, "50")]];
    let choice = choose(&hosts, &attempts).expect("reached");
    expect(&hosts, &choice, &[("::", "h2=await"), ("127.0.0.1", "h1=[fe80::1%3]")]);
    assert_eq!(choice.lines, ["h2 -> h1: fe80::1 (eth0), 0.05 ms"]);
}
