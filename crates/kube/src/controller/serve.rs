//! Health, readiness and figures for Prometheus, over plain HTTP.
//!
//! A manager is ready when the API server has answered once, and well unless it is to act and begins no round. One that waits
//! for the lease is both: starting it anew would change nothing.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::figures::Figures;
use crate::Error;

/// How long a request may take to arrive, and how long it may be.
const PATIENCE: Duration = Duration::from_secs(5);
const LONGEST: usize = 4096;
/// How long to wait when nobody could be let in.
const BREATH: Duration = Duration::from_millis(100);

/// Listens, and answers from then on.
pub(super) async fn serve(address: SocketAddr, figures: Arc<Figures>) -> Result<(), Error> {
    let listener = TcpListener::bind(address)
        .await
        .map_err(|source| Error::System { doing: "listen for those who ask how we are", source })?;
    tokio::spawn(async move {
        loop {
            let stream = match listener.accept().await {
                Ok((stream, _)) => stream,
                // One that hung up too soon, or no room for another at the moment; the next may be heard.
                Err(_) => {
                    tokio::time::sleep(BREATH).await;
                    continue;
                }
            };
            let figures = Arc::clone(&figures);
            tokio::spawn(async move {
                // Whoever asks and does not wait is no concern of ours.
                let _ = tokio::time::timeout(PATIENCE, answer(stream, &figures)).await;
            });
        }
    });
    Ok(())
}

async fn answer(mut stream: TcpStream, figures: &Figures) -> std::io::Result<()> {
    let mut request = Vec::new();
    while !request.windows(4).any(|end| end == b"\r\n\r\n") && request.len() < LONGEST {
        let mut piece = [0; 1024];
        match stream.read(&mut piece).await? {
            0 => break,
            length => request.extend_from_slice(&piece[..length]),
        }
    }
    stream.write_all(respond(&request, figures).as_bytes()).await
}

fn respond(request: &[u8], figures: &Figures) -> String {
    let line = String::from_utf8_lossy(request);
    let path = line.split_whitespace().nth(1).unwrap_or_default();
    let (status, body) = match path {
        "/healthz" => well(figures.trouble(Instant::now())),
        "/readyz" => {
            let is_waiting = || "the API server has not answered yet".to_owned();
            well((!figures.is_connected()).then(is_waiting))
        }
        "/metrics" => ("200 OK", figures.text()),
        _ => ("404 Not Found", "there are /healthz, /readyz and /metrics\n".to_owned()),
    };
    let length = body.len();
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    )
}

/// That all is well, or what is not.
fn well(trouble: Option<String>) -> (&'static str, String) {
    match trouble {
        None => ("200 OK", "ok\n".to_owned()),
        Some(trouble) => ("503 Service Unavailable", format!("{trouble}\n")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connect::Answers;

    #[test]
    fn figures_are_told_to_whoever_asks() {
        let figures = Figures::default();
        figures.leads();
        let answer = respond(b"GET /metrics HTTP/1.1\r\n\r\n", &figures);
        let (head, body) = answer.split_once("\r\n\r\n").expect("a body");
        assert!(body.ends_with('\n') && body.contains("ronde_leader 1\n"), "{answer}");
        assert!(head.contains(&format!("Content-Length: {}", body.len())), "{head}");
        assert!(respond(b"GET /healthz HTTP/1.1\r\n\r\n", &figures).starts_with("HTTP/1.1 200"));
        assert!(respond(b"garbage", &figures).starts_with("HTTP/1.1 404"));
    }

    #[test]
    fn one_is_ready_when_the_api_server_has_answered() {
        let figures = Figures::default();
        let answer = respond(b"GET /readyz HTTP/1.1\r\n\r\n", &figures);
        assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
        assert!(answer.ends_with("\r\n\r\nthe API server has not answered yet\n"), "{answer}");
        let answers = Arc::new(Answers::default());
        figures.answers(&answers);
        answers.count(403);
        assert!(respond(b"GET /readyz HTTP/1.1\r\n\r\n", &figures).starts_with("HTTP/1.1 200 "));
        assert_eq!(well(Some("stuck".to_owned())), ("503 Service Unavailable", "stuck\n".to_owned()));
    }
}
