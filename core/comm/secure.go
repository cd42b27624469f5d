package comm

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"io"
	"math/big"
	"net"
	"time"
)

// Authority is a job's certificate authority. It lives in the memory of whoever starts the ranks and is never written.
type Authority struct {
	cert []byte // DER
	x509 *x509.Certificate
	key  *ecdsa.PrivateKey
}

// Credentials let a rank encrypt its connections and prove to the others that it is that rank of that job. They are
// secret.
type Credentials struct {
	Authority, Certificate, Key []byte // DER: X.509, X.509, PKCS #8
}

// certificateLife is how long certificates are valid: longer than any job, since a connection is checked only at its start.
const certificateLife = 365 * 24 * time.Hour

// clockSkew is how far the clocks of two hosts may lie apart.
const clockSkew = 24 * time.Hour

// NewAuthority makes the authority of a job, with a fresh P-256 key.
func NewAuthority() (*Authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("comm: job authority: %w", err)
	}
	return authorityOf(key)
}

// DeriveAuthority makes the authority that everybody makes who knows secret: its key is derived from it (HKDF, RFC 5869), so that
// processes which only share a secret can prove to each other that they do, and encrypt what they say.
func DeriveAuthority(secret []byte) (*Authority, error) {
	for try := 0; ; try++ { // one in 2³² keys is out of range
		b, err := hkdf.Key(sha256.New, secret, nil, fmt.Sprintf("starling job authority %d", try), 32)
		if err != nil {
			return nil, fmt.Errorf("comm: job authority: %w", err)
		}
		key, err := ecdsa.ParseRawPrivateKey(elliptic.P256(), b)
		if err == nil {
			return authorityOf(key)
		}
		if try == 100 {
			return nil, fmt.Errorf("comm: job authority: %w", err)
		}
	}
}

func authorityOf(key *ecdsa.PrivateKey) (*Authority, error) {
	now := time.Now()
	t := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "starling job"}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign, NotBefore: now.Add(-clockSkew), NotAfter: now.Add(certificateLife),
	}
	der, err := x509.CreateCertificate(rand.Reader, t, t, &key.PublicKey, key)
	if err != nil {
		return nil, fmt.Errorf("comm: job authority: %w", err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("comm: job authority: %w", err)
	}
	return &Authority{der, cert, key}, nil
}

// Issue makes the credentials of a rank.
func (a *Authority) Issue(rank int) (*Credentials, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("comm: credentials of rank %d: %w", rank, err)
	}
	t := &x509.Certificate{
		SerialNumber: big.NewInt(int64(rank) + 2), Subject: pkix.Name{CommonName: rankName(rank)}, DNSNames: []string{rankName(rank)},
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		NotBefore: a.x509.NotBefore, NotAfter: a.x509.NotAfter,
	}
	der, err := x509.CreateCertificate(rand.Reader, t, a.x509, &key.PublicKey, a.key)
	if err != nil {
		return nil, fmt.Errorf("comm: credentials of rank %d: %w", rank, err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("comm: credentials of rank %d: %w", rank, err)
	}
	return &Credentials{a.cert, der, secret}, nil
}

// rankName is what a rank's certificate is for.
func rankName(rank int) string { return fmt.Sprintf("rank-%d.starling", rank) }

// config is the TLS configuration of both ends: version 1.3, and each side shows a certificate of the job's authority.
func (c *Credentials) config() (*tls.Config, error) {
	authority, err := x509.ParseCertificate(c.Authority)
	if err != nil {
		return nil, fmt.Errorf("comm: the job's authority: %w", err)
	}
	key, err := x509.ParsePKCS8PrivateKey(c.Key)
	if err != nil {
		return nil, fmt.Errorf("comm: this rank's key: %w", err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(authority)
	return &tls.Config{
		MinVersion: tls.VersionTLS13, RootCAs: pool, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert,
		Certificates: []tls.Certificate{{Certificate: [][]byte{c.Certificate}, PrivateKey: key}},
		// A connection lives as long as the job: nothing is ever resumed.
		SessionTicketsDisabled: true,
	}, nil
}

// secure encrypts a fresh connection to rank expect, or from whoever comes if that is negative. The name in the other
// side's certificate is compared with the rank it claims in the greeting that follows (certified).
func secure(c net.Conn, cfg *tls.Config, expect int) (net.Conn, error) {
	if cfg == nil {
		return c, nil
	}
	var t *tls.Conn
	s := newSealedConn(c)
	if expect >= 0 {
		cfg = cfg.Clone()
		cfg.ServerName = rankName(expect)
		t = tls.Client(s, cfg)
	} else {
		t = tls.Server(s, cfg)
	}
	if err := t.Handshake(); err != nil {
		return c, fmt.Errorf("no encrypted connection: %w", err)
	}
	return t, nil
}

// Secure encrypts a connection by c, as the dialer of rank expect, or as who accepts if that is negative. Deadlines are the
// caller's.
func Secure(conn net.Conn, c *Credentials, expect int) (net.Conn, error) {
	cfg, err := c.config()
	if err != nil {
		return nil, err
	}
	return secure(conn, cfg, expect)
}

// Certified reports whether the other side of a connection that Secure has encrypted showed the certificate of rank.
func Certified(conn net.Conn, rank int) bool { return certified(conn, rank) }

// certified reports whether the certificate of an encrypted connection is that of rank.
func certified(c io.ReadWriter, rank int) bool {
	t, ok := c.(*tls.Conn)
	if !ok {
		return true
	}
	certs := t.ConnectionState().PeerCertificates
	return len(certs) > 0 && certs[0].VerifyHostname(rankName(rank)) == nil
}
