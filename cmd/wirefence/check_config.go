package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
)

// checkedJSON is what `wirefence proxy --check-config` prints.
type checkedJSON struct {
	Settings map[string]string `json:"settings" says:"the settings in effect by the names of their variables, without passwords"`
}

// checkNames checks addresses and connection strings without using them. Other settings are
// checked where they are read.
func (cfg proxySettings) checkNames(ctx context.Context) error {
	for setting, all := range map[string][]string{
		"WIREFENCE_LISTEN": cfg.Listen, "WIREFENCE_ADMIN_LISTEN": {cfg.AdminListen}, "WIREFENCE_API_LISTEN": cfg.apiListen(),
	} {
		for _, at := range all {
			if err := checkListen(strings.TrimSpace(at)); err != nil && (at != "off" || setting != "WIREFENCE_ADMIN_LISTEN") {
				return fmt.Errorf("%s: %w", setting, err)
			}
		}
	}
	if cfg.DatabaseURL != "" {
		if _, err := parsePool(cfg.DatabaseURL); err != nil {
			return fmt.Errorf("WIREFENCE_DATABASE_URL: %w", err)
		}
	}
	if !cfg.storeNamed(cfg.DatabaseURL) {
		return nil
	}
	leases, err := openLeases(ctx, cfg.StoreSettings, cfg.DatabaseURL)
	if err != nil {
		return err
	}
	leases.close()
	return nil
}

// checkListen checks that a proxy could listen at an address, if it is free.
func checkListen(at string) error {
	if strings.HasPrefix(at, "fd:") {
		return nil // systemd passes the socket only to the service
	}
	if path, found := strings.CutPrefix(at, "unix:"); found {
		if strings.HasPrefix(path, "@") {
			return nil
		}
		_, err := os.Stat(filepath.Dir(path))
		return err
	}
	_, port, err := net.SplitHostPort(at)
	if err != nil {
		return err
	}
	_, err = net.LookupPort("tcp", port)
	return err
}

// telemetry pushes what OpenTelemetry's variables ask for, and nothing where settings are
// only checked.
func (cfg proxySettings) telemetry(ctx context.Context, all prometheus.Gatherer, log *slog.Logger) (*telemetry, error) {
	if cfg.CheckConfig {
		return &telemetry{log: log}, nil
	}
	return pushTelemetry(ctx, all, log)
}

// printSettings prints what is in effect, in the order of the help.
func (cfg proxySettings) printSettings(w io.Writer) error {
	all := cfg.withoutSecrets()
	if cfg.inJSON() {
		return printJSON(w, checkedJSON{all})
	}
	for _, f := range fields[proxySettings]() {
		if name := variable(f); name != "" {
			if _, err := fmt.Fprintf(w, "%s=%s\n", name, cell(all[name])); err != nil {
				return err
			}
		}
	}
	return nil
}
