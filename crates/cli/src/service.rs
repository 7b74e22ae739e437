//! What systemd is told of a command that stays: that it serves, and that it is about to end (sd_notify(3)).

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Names the socket on which systemd listens.
const VARIABLE: &str = "NOTIFY_SOCKET";

/// Says that the command serves from now on, and in a few words what. Without systemd nobody is told.
///
/// # Errors
/// Whatever the socket says: systemd would wait in vain.
pub fn tell_ready(words: &str) -> io::Result<()> {
    // A line each: words of several would be several assignments.
    tell(&format!("READY=1\nSTATUS={}", words.replace('\n', " ")))
}

/// Says that the command is about to end.
pub fn tell_stopping() {
    // It ends anyway.
    let _ = tell("STOPPING=1");
}

fn tell(words: &str) -> io::Result<()> {
    match std::env::var_os(VARIABLE) {
        Some(socket) => send(&socket, words),
        None => Ok(()),
    }
}

/// A name that begins with `@` is one in no file system.
fn send(socket: &OsStr, words: &str) -> io::Result<()> {
    let address = match socket.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        _ => SocketAddr::from_pathname(socket)?,
    };
    UnixDatagram::unbound()?.send_to_addr(words.as_bytes(), &address).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn received(socket: &UnixDatagram) -> String {
        let mut room = [0; 256];
        let bytes = socket.recv(&mut room).unwrap();
        String::from_utf8(room[..bytes].to_vec()).unwrap()
    }

    #[test]
    fn words_arrive_by_path_and_by_name() {
        let folder = std::env::temp_dir().join(format!("hinterland-notify-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        let path = folder.join("socket");
        let by_path = UnixDatagram::bind(&path).unwrap();
        send(path.as_os_str(), "READY=1").unwrap();
        assert_eq!(received(&by_path), "READY=1");
        std::fs::remove_dir_all(&folder).unwrap();

        let name = format!("hinterland-notify-{}", std::process::id());
        let by_name = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        send(OsStr::new(&format!("@{name}")), "STOPPING=1").unwrap();
        assert_eq!(received(&by_name), "STOPPING=1");
    }

    #[test]
    fn a_socket_that_is_gone_is_told() {
        assert!(send(OsStr::new("/nonexistent/notify"), "READY=1").is_err());
    }
}
