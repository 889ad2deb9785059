package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/wirefence/wirefence/internal/connstring"
	"github.com/wirefence/wirefence/proxy"
)

// checkedJSON is what `wirefence proxy --check-config` prints.
type checkedJSON struct {
	Settings map[string]string `json:"settings" says:"the settings in effect by the names of their variables, without passwords"`
}

// checksConfig reports whether a command is asked to check the settings only, and to
// report all that is wrong with them.
func checksConfig(c *cobra.Command) bool {
	flag := c.Flags().Lookup("check-config")
	return flag != nil && flag.Value.String() == "true"
}

// validate finds what is wrong with settings besides their ranges, without reading the files
// that they name.
func (cfg proxySettings) validate() error {
	var errs []error
	if len(cfg.apiListen()) > 0 && !cfg.storeNamed(cfg.DatabaseURL) {
		errs = append(errs, errors.New("WIREFENCE_API_LISTEN needs a lease store: set WIREFENCE_DATABASE_URL, or one of the settings of other lease stores"))
	}
	errs = append(errs, cfg.checkUpstream(), cfg.checkAddresses(), cfg.checkDatabaseURL())
	return errors.Join(errs...)
}

// checkUpstream names the setting, which the proxy doesn't know.
func (cfg proxySettings) checkUpstream() error {
	if cfg.Upstream == "" {
		return errors.New("WIREFENCE_UPSTREAM is not set (--upstream): it names the PostgreSQL server, as in postgres://db.internal:5432/")
	}
	o := proxy.Options{Upstream: cfg.Upstream}
	if err := o.Validate(); err != nil {
		return fmt.Errorf("WIREFENCE_UPSTREAM (--upstream): %w", err)
	}
	return nil
}

func (cfg proxySettings) checkDatabaseURL() error {
	if cfg.DatabaseURL == "" {
		return nil
	}
	if _, err := connstring.Conn(cfg.DatabaseURL); err != nil {
		return fmt.Errorf("WIREFENCE_DATABASE_URL (--database-url): %w", err)
	}
	return nil
}

func (cfg proxySettings) checkAddresses() error {
	var errs []error
	for _, each := range []struct {
		setting string
		all     []string
	}{
		{"WIREFENCE_LISTEN", cfg.Listen}, {"WIREFENCE_ADMIN_LISTEN", []string{cfg.AdminListen}}, {"WIREFENCE_API_LISTEN", cfg.apiListen()},
	} {
		for _, at := range each.all {
			if err := checkListen(strings.TrimSpace(at)); err != nil && (at != "off" || each.setting != "WIREFENCE_ADMIN_LISTEN") {
				errs = append(errs, fmt.Errorf("%s: %w", each.setting, err))
			}
		}
	}
	return errors.Join(errs...)
}

// withoutInvalidURLs are the settings with a valid URL in the place of each that validate
// refuses: to find what else is wrong, and to find nothing twice.
func (cfg proxySettings) withoutInvalidURLs() proxySettings {
	const valid = "postgres://127.0.0.1/"
	if cfg.checkUpstream() != nil {
		cfg.Upstream = valid
	}
	if cfg.checkDatabaseURL() != nil {
		cfg.DatabaseURL = valid
	}
	return cfg
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
