//! How much passes between two hosts, measured.
//!
//! That a host can be reached, by which address and how fast, is found out as for a job, by `probe.rs`. Here one host
//! listens and the other dials the address that worked. Both prove the doctor's secret. Then the dialler asks for what it
//! wants, one request after the other:
//!
//! ```text
//! U            the dialler sends pieces, the last is empty; back come bytes and nanoseconds
//! D <millis>   the listener sends pieces for that time, the last is empty
//! ```

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use ronde_trust::{Role, Secret, prove_within};

use super::question::{Bandwidth, Journey, Service};
use crate::listening;

/// What a connection is for.
const PURPOSE: &[u8] = b"ronde meter 1";
/// How long connecting, proving and every single read may take.
const PATIENCE: Duration = Duration::from_secs(3);
/// How much is sent at a time.
const PIECE: usize = 256 << 10;
/// Nobody is served for longer than this.
const LONGEST: Duration = Duration::from_secs(5);

/// Answers those who measure, until this process ends. Gives the port.
pub(super) fn serve(service: &Service) -> Result<u16, String> {
    let secret = Secret::from_hex(&service.secret).map_err(|error| error.to_string())?;
    let listener = listening::everywhere(service.ports.clone()).map_err(|error| error.to_string())?;
    let port = listener.local_addr().map_err(|error| error.to_string())?.port();
    let accept = move || {
        for stream in listener.incoming().flatten() {
            let secret = secret.clone();
            // Whoever does not behave is dropped.
            thread::spawn(move || drop(attend(&stream, &secret)));
        }
    };
    thread::Builder::new().name("ronde-meter".to_owned()).spawn(accept).map_err(|error| error.to_string())?;
    Ok(port)
}

/// Measures the way to a host in both directions, one after the other.
pub(super) fn measure(journey: &Journey) -> Result<Bandwidth, String> {
    let secret = Secret::from_hex(&journey.secret).map_err(|error| error.to_string())?;
    let mut address = journey.address;
    if let SocketAddr::V6(address) = &mut address {
        address.set_scope_id(journey.scope);
    }
    let measured = dial(address, &secret).and_then(|stream| {
        let there = send_for(&stream, journey.time)?;
        Ok(Bandwidth { there, back: receive_for(&stream, journey.time)? })
    });
    measured.map_err(|error| error.to_string())
}

fn dial(address: SocketAddr, secret: &Secret) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    prove_within(&stream, secret, Role::Dialer, PURPOSE, PATIENCE).map_err(io::Error::other)?;
    limit(&stream)?;
    Ok(stream)
}

/// Serves one dialler until it leaves.
fn attend(mut stream: &TcpStream, secret: &Secret) -> io::Result<()> {
    prove_within(stream, secret, Role::Listener, PURPOSE, PATIENCE).map_err(io::Error::other)?;
    limit(stream)?;
    let mut request = [0];
    loop {
        stream.read_exact(&mut request)?;
        match &request {
            b"U" => {
                let (bytes, time) = swallow(stream)?;
                let nanoseconds = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
                stream.write_all(&[bytes.to_le_bytes(), nanoseconds.to_le_bytes()].concat())?;
            }
            b"D" => {
                let mut time = [0; 4];
                stream.read_exact(&mut time)?;
                let time = Duration::from_millis(u32::from_le_bytes(time).into());
                pour(stream, time.min(LONGEST))?;
            }
            _ => return Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

/// Bits a second that the other end counted.
fn send_for(mut stream: &TcpStream, time: Duration) -> io::Result<f64> {
    stream.write_all(b"U")?;
    pour(stream, time)?;
    let (mut bytes, mut nanoseconds) = ([0; 8], [0; 8]);
    stream.read_exact(&mut bytes)?;
    stream.read_exact(&mut nanoseconds)?;
    Ok(rate(u64::from_le_bytes(bytes), Duration::from_nanos(u64::from_le_bytes(nanoseconds))))
}

/// Bits a second that came from the other end.
fn receive_for(mut stream: &TcpStream, time: Duration) -> io::Result<f64> {
    stream.write_all(b"D")?;
    stream.write_all(&u32::try_from(time.as_millis()).unwrap_or(u32::MAX).to_le_bytes())?;
    let (bytes, time) = swallow(stream)?;
    Ok(rate(bytes, time))
}

fn rate(bytes: u64, time: Duration) -> f64 {
    // A nanosecond more avoids the division by zero.
    bytes as f64 * 8.0 / (time.as_secs_f64() + 1e-9)
}

/// Sends pieces for some time, and then an empty one.
fn pour(mut stream: &TcpStream, time: Duration) -> io::Result<()> {
    let mut piece = (PIECE as u32).to_le_bytes().to_vec();
    piece.resize(4 + PIECE, 0);
    let started = Instant::now();
    while started.elapsed() < time {
        stream.write_all(&piece)?;
    }
    stream.write_all(&0_u32.to_le_bytes())
}

/// Takes pieces up to the empty one; says how many bytes came, and in what time.
fn swallow(mut stream: &TcpStream) -> io::Result<(u64, Duration)> {
    let mut piece = vec![0; PIECE];
    let mut bytes = 0;
    let mut started = None;
    loop {
        let mut length = [0; 4];
        stream.read_exact(&mut length)?;
        let length = u32::from_le_bytes(length) as usize;
        // The clock starts when the first piece begins to arrive: nothing says when it was sent.
        let since = started.get_or_insert_with(Instant::now);
        if length == 0 {
            return Ok((bytes, since.elapsed()));
        }
        if length > PIECE || since.elapsed() > 2 * LONGEST {
            return Err(io::ErrorKind::InvalidData.into());
        }
        stream.read_exact(&mut piece[..length])?;
        bytes += length as u64;
    }
}

fn limit(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn digits(first: u8) -> String {
        format!("{first:02x}").repeat(32)
    }

    fn journey(secret: String, port: u16) -> Journey {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        // Long enough for both ends to get their turn on a busy machine.
        Journey { secret, address, scope: 0, time: Duration::from_millis(300) }
    }

    #[test]
    fn a_way_is_measured_in_both_directions_and_again() {
        let port = serve(&Service { secret: digits(1), ports: None }).expect("a service");
        for _ in 0..2 {
            let way = measure(&journey(digits(1), port)).expect("a way");
            assert!(way.there > 0.0 && way.back > 0.0, "{way:?}");
        }
    }

    #[test]
    fn whoever_does_not_know_the_secret_measures_nothing() {
        let port = serve(&Service { secret: digits(1), ports: None }).expect("a service");
        assert!(measure(&journey(digits(2), port)).is_err());
    }

    #[test]
    fn a_rate_is_bits_a_second() {
        assert_eq!(rate(125_000_000, Duration::from_secs(1)).round(), 999_999_999.0);
        assert_eq!(rate(0, Duration::ZERO), 0.0);
    }
}
