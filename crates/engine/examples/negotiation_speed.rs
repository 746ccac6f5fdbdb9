//! How long negotiating cached tensors takes on both of two ranks together, encoding and decoding included, without
//! moving any data: `cargo run --release -p ronde-engine --example negotiation_speed`.

use std::time::{Duration, Instant};

use ronde_collective::types::DType;
use ronde_engine::negotiation::{Kind, Negotiator, Request, Settings, Ticket, Topology};

fn main() {
    let node = |me| {
        let host_names = vec!["here".to_owned(); 2];
        let topology = Topology { me, members: vec![0, 1], hosts: vec![vec![0, 1]], host_names };
        Negotiator::new(topology, Settings::default())
    };
    let (mut leader, mut member) = (node(0), node(1));
    for batch in [1, 160] {
        let requests: Vec<Request> = (0..batch)
            .map(|at| {
                Request::new(Kind::Allreduce, format!("allreduce.layer.{at}.weight"), DType::F32, [64, 64])
            })
            .collect();
        let rounds: u32 = 200_000 / batch;
        let mut spent = Duration::ZERO;
        for round in 0..rounds {
            let now = Duration::from_micros(u64::from(round));
            let submissions = |offset: Ticket| {
                (0..)
                    .map(move |at: Ticket| at + offset)
                    .zip(&requests)
                    .map(|(ticket, request)| vec![(request.clone(), ticket)])
            };
            let (mine, others): (Vec<_>, Vec<_>) = submissions(0).zip(submissions(1000)).unzip();
            let start = Instant::now();
            for (mine, others) in mine.into_iter().zip(others) {
                member.submit_all(now, others).expect("nothing is in flight");
                leader.submit_all(now, mine).expect("nothing is in flight");
            }
            while let Some((_, frame)) = member.outgoing() {
                leader.receive(now, 1, &frame).expect("nodes understand each other");
            }
            leader.advance(now);
            while let Some((_, frame)) = leader.outgoing() {
                member.receive(now, 0, &frame).expect("nodes understand each other");
            }
            member.advance(now);
            let decided = [leader.next(), member.next()];
            spent += start.elapsed();
            assert!(decided.iter().all(Option::is_some));
        }
        println!("{batch} cached tensors: {:?} a step, both ranks together", spent / rounds);
    }
}
