package main

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"

	"github.com/wirefence/wirefence/internal/api"
	"github.com/wirefence/wirefence/internal/watched"
)

// adminFiles are the admin listener's token file and certificate, which are read again when
// they change.
type adminFiles struct {
	token *api.Token                       // nil where no file is named
	pair  *watched.Value[*tls.Certificate] // nil: no TLS
}

func readAdminFiles(cfg proxySettings, log *slog.Logger) (f adminFiles, err error) {
	if cfg.AdminTokenFile != "" {
		if f.token, err = api.ReadToken(cfg.AdminTokenFile, log); err != nil {
			return f, fmt.Errorf("WIREFENCE_ADMIN_TOKEN_FILE: %w", err)
		}
	}
	switch {
	case cfg.AdminTLSCert == "" && cfg.AdminTLSKey == "":
		return f, nil
	case cfg.AdminTLSCert == "" || cfg.AdminTLSKey == "":
		return f, errors.New("TLS on the admin listener takes both WIREFENCE_ADMIN_TLS_CERT_FILE and WIREFENCE_ADMIN_TLS_KEY_FILE")
	}
	f.pair, err = watched.KeyPair(cfg.AdminTLSCert, cfg.AdminTLSKey, func(err error) {
		log.Error("cannot use the admin listener's certificate; the last good one stays in use", "error", err)
	})
	if err != nil {
		return f, fmt.Errorf("WIREFENCE_ADMIN_TLS_CERT_FILE, WIREFENCE_ADMIN_TLS_KEY_FILE: %w", err)
	}
	return f, nil
}

// tls returns nil where no certificate is named.
func (f adminFiles) tls() *tls.Config {
	if f.pair == nil {
		return nil
	}
	return &tls.Config{
		MinVersion:     tls.VersionTLS12,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return f.pair.Get(), nil },
	}
}

func (f adminFiles) reload(log *slog.Logger) error {
	var done []string
	var failures []error
	for _, each := range []struct {
		what   string
		named  bool
		reload func() error
	}{
		{"admin token", f.token != nil, func() error { return f.token.Reload() }},
		{"admin TLS certificate", f.pair != nil, func() error { return f.pair.Reload() }},
	} {
		if !each.named {
			continue
		}
		if err := each.reload(); err != nil {
			failures = append(failures, fmt.Errorf("reloading the %s: %w", each.what, err))
			continue
		}
		done = append(done, each.what)
	}
	if len(done) > 0 {
		log.Info("reloaded", "what", done)
	}
	return errors.Join(failures...)
}
