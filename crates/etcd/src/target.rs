//! Where etcd is, in one line of text: `etcd://h1:2379,h2:2379/prefix?ca=FILE`.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// Most addresses of one cluster: etcd itself advises seven members at most.
const ADDRESSES_MAX: usize = 16;
/// Longest text: sixteen host names, a prefix and paths of files.
const TEXT_BYTES_MAX: usize = 8192;
/// Longest prefix of keys.
const PREFIX_BYTES_MAX: usize = 256;
/// The prefix if none is named.
const PREFIX: &str = "hinterland";

/// Where etcd is, and as whom it is asked.
///
/// `etcd://[USER@]HOST:PORT[,HOST:PORT...][/PREFIX][?password=FILE&ca=FILE&cert=FILE&key=FILE]`; `etcds://` for TLS.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Target {
    /// Whether the connection is encrypted.
    pub tls: bool,
    /// `HOST:PORT` of each member, at least one.
    pub addresses: Vec<String>,
    /// What all keys begin with, without a slash at either end.
    pub prefix: String,
    /// The user, if etcd wants one.
    pub user: Option<String>,
    /// File with the user's password.
    pub password: Option<PathBuf>,
    /// File with the certificates of the authorities that are believed (PEM); without it those of the public web.
    pub ca: Option<PathBuf>,
    /// File with the certificate that this host shows (PEM).
    pub cert: Option<PathBuf>,
    /// File with its private key (PEM).
    pub key: Option<PathBuf>,
}

/// A text is no address of etcd.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "{text:?} is no directory: {why} (hint: etcd://HOST:PORT,HOST:PORT,HOST:PORT, with etcds:// for TLS; guide: docs/guides/directory.md)"
)]
pub struct TargetError {
    /// The text, or its beginning.
    pub text: String,
    /// What is wrong.
    pub why: String,
}

impl FromStr for Target {
    type Err = TargetError;

    fn from_str(text: &str) -> Result<Self, TargetError> {
        parse(text).map_err(|why| TargetError { text: text.chars().take(80).collect(), why })
    }
}

fn parse(text: &str) -> Result<Target, String> {
    if text.len() > TEXT_BYTES_MAX {
        return Err(format!("longer than {TEXT_BYTES_MAX} bytes"));
    }
    if text.chars().any(|c| c.is_control() || c.is_whitespace()) {
        return Err("it has blanks or control characters".to_owned());
    }
    let (scheme, rest) = text.split_once("://").ok_or("it does not begin with etcd://")?;
    let tls = match scheme {
        "etcd" => false,
        "etcds" => true,
        "http" => return Err("write etcd:// for http://".to_owned()),
        "https" => return Err("write etcds:// for https://".to_owned()),
        other => return Err(format!("{other}:// is not known")),
    };
    let (rest, query) = rest.split_once('?').map_or((rest, None), |(rest, query)| (rest, Some(query)));
    let (hosts, prefix) = rest.split_once('/').unwrap_or((rest, ""));
    let (user, hosts) = hosts.rsplit_once('@').map_or((None, hosts), |(user, hosts)| (Some(user), hosts));
    if user.is_some_and(|user| user.is_empty() || user.contains(':')) {
        return Err(
            "before the @ stands the user's name alone; the password is in a file, ?password=FILE".to_owned()
        );
    }
    let addresses = hosts.split(',').map(address).collect::<Result<Vec<_>, _>>()?;
    if addresses.len() > ADDRESSES_MAX {
        return Err(format!("more than {ADDRESSES_MAX} addresses"));
    }
    let mut target = Target {
        tls,
        addresses,
        prefix: parse_prefix(prefix)?,
        user: user.map(str::to_owned),
        password: None,
        ca: None,
        cert: None,
        key: None,
    };
    for pair in query.into_iter().flat_map(|query| query.split('&')) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let place = match name {
            "password" => &mut target.password,
            "ca" => &mut target.ca,
            "cert" => &mut target.cert,
            "key" => &mut target.key,
            other => return Err(format!("{other:?} is not known; password, ca, cert and key are")),
        };
        if value.is_empty() || place.is_some() {
            return Err(format!("{name} wants one file: {name}=FILE"));
        }
        *place = Some(PathBuf::from(value));
    }
    if target.user.is_some() != target.password.is_some() {
        return Err(
            "a user and the file of its password come together: NAME@... and ?password=FILE".to_owned()
        );
    }
    if target.cert.is_some() != target.key.is_some() {
        return Err("cert=FILE and key=FILE come together".to_owned());
    }
    if !tls && (target.ca.is_some() || target.cert.is_some()) {
        return Err("certificates are for etcds://".to_owned());
    }
    Ok(target)
}

fn address(text: &str) -> Result<String, String> {
    let wrong = || format!("{text:?} is not HOST:PORT");
    let (host, port) = text.rsplit_once(':').ok_or_else(wrong)?;
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    let is_v6 = bare.len() != host.len();
    let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_') || (is_v6 && c == ':');
    if bare.is_empty() || !bare.chars().all(good) || !port.parse::<u16>().is_ok_and(|port| port > 0) {
        return Err(wrong());
    }
    Ok(text.to_owned())
}

fn parse_prefix(text: &str) -> Result<String, String> {
    let text = text.trim_matches('/');
    if text.is_empty() {
        return Ok(PREFIX.to_owned());
    }
    let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | '/');
    if text.len() > PREFIX_BYTES_MAX || !text.chars().all(good) || text.contains("//") {
        return Err(format!("the prefix {text:?} is not of letters, digits and . - _ /"));
    }
    Ok(text.to_owned())
}

impl fmt::Display for Target {
    /// Without users and files: for messages.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.tls { "etcds" } else { "etcd" };
        write!(f, "{scheme}://{}/{}", self.addresses.join(","), self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn why(text: &str) -> String {
        text.parse::<Target>().unwrap_err().to_string()
    }

    #[test]
    fn all_of_it_is_read() {
        let text = "etcds://root@h1:2379,[::1]:2379,10.0.0.3:1/pools/one?password=/p&ca=/ca&cert=/c&key=/k";
        let target: Target = text.parse().unwrap();
        assert!(target.tls);
        assert_eq!(target.addresses, ["h1:2379", "[::1]:2379", "10.0.0.3:1"]);
        assert_eq!(target.prefix, "pools/one");
        assert_eq!(target.user.as_deref(), Some("root"));
        assert_eq!(target.to_string(), "etcds://h1:2379,[::1]:2379,10.0.0.3:1/pools/one");
        assert_eq!("etcd://h:1".parse::<Target>().unwrap().prefix, "hinterland");
    }

    #[test]
    fn what_is_wrong_is_said() {
        assert!(why("h1:2379").contains("begin with etcd://"));
        assert!(why("http://h1:2379").contains("write etcd://"));
        assert!(why("https://h1:2379").contains("write etcds://"));
        assert!(why("consul://h1:2379").contains("not known"));
        assert!(why("etcd://h1").contains("is not HOST:PORT"));
        assert!(why("etcd://h1:0").contains("is not HOST:PORT"));
        assert!(why("etcd://h1:1,,h2:2").contains("is not HOST:PORT"));
        assert!(why("etcd://").contains("is not HOST:PORT"));
        assert!(why("etcd://a:b@h1:1?password=/p").contains("password is in a file"));
        assert!(why("etcd://a@h1:1").contains("come together"));
        assert!(why("etcds://h1:1?cert=/c").contains("come together"));
        assert!(why("etcd://h1:1?ca=/c").contains("for etcds://"));
        assert!(why("etcd://h1:1?speed=9").contains("not known"));
        assert!(why("etcd://h1:1/a//b").contains("prefix"));
        assert!(why("etcd://h1:1/a b").contains("blanks"));
        assert!(why(&"x".repeat(10_000)).contains("longer than"));
    }

    proptest! {
        #[test]
        fn random_text_is_read_or_refused(text in "(etcd|etcds|http)?(://)?[ -~]{0,60}") {
            if let Ok(target) = text.parse::<Target>() {
                prop_assert!(!target.addresses.is_empty());
                prop_assert!(!target.prefix.is_empty());
            }
        }

        #[test]
        fn mutated_text_is_read_or_refused(place in 0usize..60, byte in any::<char>()) {
            let mut text: Vec<char> = "etcds://root@h1:2379,h2:2379/pool?password=/p&ca=/ca".chars().collect();
            let place = place % text.len();
            text[place] = byte;
            let _ = text.into_iter().collect::<String>().parse::<Target>();
        }
    }
}
