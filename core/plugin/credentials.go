package plugin

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"time"

	"starling/sdk"
)

// newCredentials makes an authority and a certificate for each end of one connection. The curve is P-256, which every gRPC
// implementation accepts; go-plugin's own certificates are P-521, which Python's refuses.
func newCredentials() (host, plugin sdk.Credentials, err error) {
	now := time.Now()
	serial := int64(0)
	template := func(name string) *x509.Certificate {
		serial++
		return &x509.Certificate{SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: name},
			NotBefore: now.Add(-24 * time.Hour), NotAfter: now.AddDate(10, 0, 0), BasicConstraintsValid: true}
	}
	ca := template("starling rank")
	ca.IsCA, ca.KeyUsage = true, x509.KeyUsageCertSign
	authority, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return host, plugin, fmt.Errorf("making a key: %w", err)
	}
	caDER, err := x509.CreateCertificate(rand.Reader, ca, ca, &authority.PublicKey, authority)
	if err != nil {
		return host, plugin, fmt.Errorf("making a certificate: %w", err)
	}
	caPEM := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: caDER}))
	leaf := func(name string) (sdk.Credentials, error) {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			return sdk.Credentials{}, fmt.Errorf("making a key: %w", err)
		}
		t := template(name)
		t.DNSNames, t.IPAddresses = []string{"localhost"}, []net.IP{net.IPv4(127, 0, 0, 1)}
		t.KeyUsage = x509.KeyUsageDigitalSignature
		t.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
		der, err := x509.CreateCertificate(rand.Reader, t, ca, &key.PublicKey, authority)
		if err != nil {
			return sdk.Credentials{}, fmt.Errorf("making a certificate: %w", err)
		}
		k, err := x509.MarshalPKCS8PrivateKey(key)
		if err != nil {
			return sdk.Credentials{}, fmt.Errorf("making a key: %w", err)
		}
		return sdk.Credentials{CA: caPEM, Cert: string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})),
			Key: string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: k}))}, nil
	}
	if host, err = leaf("runtime"); err != nil {
		return host, plugin, err
	}
	plugin, err = leaf("plugin")
	return host, plugin, err
}
