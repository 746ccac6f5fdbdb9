//! What every control connection is set to.

use std::io;
use std::net::TcpStream;
use std::time::Duration;

use rustix::net::sockopt;

/// How long a peer may take to prove itself and say who it is.
pub(crate) const HANDSHAKE_LIMIT: Duration = Duration::from_secs(10);

/// No waiting to fill packets, and a host that vanished without closing is noticed within about
/// 20 seconds even while nobody speaks.
pub(crate) fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, Duration::from_secs(10))?;
    sockopt::set_tcp_keepintvl(stream, Duration::from_secs(3))?;
    sockopt::set_tcp_keepcnt(stream, 3)?;
    sockopt::set_tcp_user_timeout(stream, 20_000)?;
    Ok(())
}
