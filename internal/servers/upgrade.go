package servers

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
)

// UpgradableVersions returns the major versions whose packages have pg_upgrade, ascending.
func UpgradableVersions() (all []int) {
	for major, bin := range postgresBinaries() {
		if _, err := os.Stat(filepath.Join(bin, "pg_upgrade")); err == nil {
			all = append(all, major)
		}
	}
	slices.Sort(all)
	return all
}

// Upgrade stops the server, has pg_upgrade copy its databases into a new cluster of the
// same version, and starts that.
func (p *Postgres) Upgrade(ctx context.Context) (*Postgres, error) {
	p.Stop()
	to := &Postgres{Major: p.Major, bin: p.bin, account: p.account}
	var err error
	if to.dir, err = os.MkdirTemp("", "wf-pg-"); err != nil {
		return nil, err
	}
	to.SocketDir = to.dir
	return orClosed(to, to.upgradeFrom(ctx, p))
}

func (p *Postgres) upgradeFrom(ctx context.Context, old *Postgres) error {
	if err := p.initialise(ctx, PostgresConfig{}); err != nil {
		return err
	}
	upgrade := p.command(ctx, "pg_upgrade", "-U", "postgres", "-b", p.bin, "-B", p.bin, "-s", p.dir,
		"-d", filepath.Join(old.dir, "data"), "-D", filepath.Join(p.dir, "data"), "-p", strconv.Itoa(old.Port), "-P", strconv.Itoa(p.Port))
	if out, err := upgrade.CombinedOutput(); err != nil {
		return fmt.Errorf("pg_upgrade: %w\n%s", err, out)
	}
	return p.Start(ctx)
}
