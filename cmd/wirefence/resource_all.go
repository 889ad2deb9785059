package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/jackc/pgx/v5"

	"github.com/wirefence/wirefence/fence"
)

// checkForAll checks the flags of a command that names no resource.
func (cfg setSettings) checkForAll() error {
	others := cfg.PolicySettings
	others.Reason, others.Failover = "", ""
	switch {
	case cfg.Undeclared == "" && cfg.Failover == "":
		return errors.New("wants one resource, or --undeclared allow or refuse, or --failover reacquire or trust")
	case cfg.Undeclared != "" && cfg.Failover != "":
		return errors.New("set --undeclared and --failover one after the other")
	case others != (PolicySettings{}) || cfg.LastToken != nil:
		return errors.New("wants one resource: only --undeclared and --failover can be for all")
	}
	return cfg.checkReason()
}

// setForAll changes the settings of all resources.
func (cfg setSettings) setForAll(ctx context.Context, conn *pgx.Conn, w io.Writer) error {
	var changed map[string][2]json.RawMessage
	var err error
	done := "it is set for all resources; those in wirefence resource list are known"
	if cfg.Failover != "" {
		changed, err = fence.SetFailover(ctx, conn, fence.Failover(cfg.Failover), cfg.Reason)
		done = "it is set for all resources, except for those of which it was said"
	} else {
		changed, err = fence.SetUndeclared(ctx, conn, fence.Undeclared(cfg.Undeclared), cfg.Reason)
	}
	switch {
	case err != nil:
		return err
	case cfg.inJSON():
		return printJSON(w, setJSON{Settings: changed})
	}
	fmt.Fprintln(w, done)
	values(changed).print(w)
	return nil
}
