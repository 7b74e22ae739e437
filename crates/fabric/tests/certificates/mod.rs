//! Authorities and folders of certificates for tests.

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    date_time_ymd,
};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

/// Who signs.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: String,
}

impl Authority {
    /// A new one, of a name of its own.
    pub fn fresh() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        // Each of a name of its own, as authorities have.
        static COUNT: AtomicU64 = AtomicU64::new(0);
        // Relaxed: only makes the names differ.
        let name = format!("authority {}", COUNT.fetch_add(1, Ordering::Relaxed));
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap().pem();
        Self { issuer: Issuer::new(params, key), certificate }
    }

    /// The three files of one side, valid up to the end of a year.
    pub fn files(&self, last_year: i32) -> [(&'static str, String); 3] {
        self.files_for(last_year, Vec::new())
    }

    /// The same for these purposes alone.
    pub fn files_for(
        &self,
        last_year: i32,
        purposes: Vec<ExtendedKeyUsagePurpose>,
    ) -> [(&'static str, String); 3] {
        // No name of the servers of the tests: names are not compared.
        let mut params = CertificateParams::new(vec!["somebody.example".to_owned()]).unwrap();
        params.not_before = date_time_ymd(2020, 1, 1);
        params.not_after = date_time_ymd(last_year, 12, 31);
        params.extended_key_usages = purposes;
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap().pem();
        [("ca.crt", self.certificate.clone()), ("tls.crt", certificate), ("tls.key", key.serialize_pem())]
    }

    /// A new folder with them, which stays.
    pub fn folder(&self) -> PathBuf {
        let folder = new_folder();
        for (name, text) in self.files(2099) {
            std::fs::write(folder.join(name), text).unwrap();
        }
        folder
    }
}

/// An empty folder below the one for temporary files of tests.
pub fn new_folder() -> PathBuf {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    // Relaxed: only makes the names differ.
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let folder =
        PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("tls-{}-{number}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}
