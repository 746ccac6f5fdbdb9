//! Engines whose ranks were told about the network by a launcher: names of hosts, addresses, ports, who dials.

use std::net::IpAddr;

use crate::ranks::{Floats, Rendezvous, complete, settings, sum};
use ronde_collective::Routes;
use ronde_engine::{LinkKind, Network};
use ronde_trust::Secret;

/// Three hosts that listen on all addresses, so that only the routes say where; the first dials nobody.
fn networks() -> Vec<Network> {
    let routes = ["h1=await;h2=await", "h0=127.0.0.2;h2=127.0.0.4", "h0=127.0.0.2;h1=await"];
    let told = |(host, routes): (usize, &str)| Network {
        host: Some(format!("h{host}")),
        address: Some(IpAddr::from([0, 0, 0, 0])),
        ports: Some(61_100..=61_163),
        routes: Routes::parse(routes).expect("routes"),
        ..Network::default()
    };
    routes.into_iter().enumerate().map(told).collect()
}

#[test]
fn jobs_run_over_the_routes_they_were_given_and_can_be_joined_again() {
    let secret = Secret::random().expect("random bytes");
    // The second time is what a script does that calls `shutdown()` and `init()` again.
    for _ in 0..2 {
        let job = Rendezvous::over(&[2, 1, 1], secret.clone(), networks());
        job.run(&settings(), &[], |engine| {
            let mut tensor = Floats(vec![engine.place().rank as f32; 100_000]);
            complete(engine, 0, sum("all", tensor.tensor())).expect("summed");
            assert!(tensor.0.iter().all(|&value| value == 6.0));
            let over_tcp = engine.links().iter().filter(|&&link| link == LinkKind::Tcp).count();
            assert_eq!(over_tcp, if engine.place().rank < 2 { 2 } else { 3 });
        });
    }
}
