package servers

import (
	"context"
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
	return startPostgres(ctx, p.Major, p.bin, func(to *Postgres) error {
		if err := to.initialise(ctx, PostgresConfig{}); err != nil {
			return err
		}
		return to.tool(ctx, "pg_upgrade", "-U", "postgres", "-b", p.bin, "-B", p.bin, "-s", to.dir,
			"-d", p.data(), "-D", to.data(), "-p", strconv.Itoa(p.Port), "-P", strconv.Itoa(to.Port))
	})
}
