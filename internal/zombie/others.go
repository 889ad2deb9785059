package zombie

import (
	"context"
	"fmt"
	"maps"
	"time"
)

// Who else writes to the tables, and when a run that was frozen or has ended writes no more.

const (
	// settleTime is how long the server has to complete what a run has sent before it was frozen
	// or ended.
	settleTime = 5 * time.Second
	// quietTime is how long no session may be at work until what was sent counts as completed. It
	// covers what is on its way.
	quietTime = 100 * time.Millisecond
)

// before looks for other writers before the first run.
func (p *play) before(ctx context.Context) (err error) {
	if err := p.noOthers(ctx, "before the first run, "); err != nil {
		return err
	}
	p.earlier, err = p.openTransactions(ctx)
	return err
}

// noOthers looks for other writers, whose writes no play can tell from its runs'.
func (p *play) noOthers(ctx context.Context, when string) error {
	p.Tell(Other, fmt.Sprintf("looking for other writers for %v", p.Control))
	others, err := p.control(ctx)
	if err == nil && others != "" {
		err = othersWrite(when + others)
	}
	return err
}

func othersWrite(how string) error {
	return unknown("others write to the tables, and their writes can't be told from the runs': %s", how)
}

// control watches the tables while no run is there to write to them, and says who does.
func (p *play) control(ctx context.Context) (others string, err error) {
	before, err := p.read(ctx, p.isCompared)
	if err != nil {
		return "", err
	}
	if _, err := p.changes(ctx); err != nil {
		return "", err
	}
	found := map[string]bool{}
	for end := time.Now().Add(p.Control); time.Now().Before(end); {
		writing, err := p.writers(ctx)
		if err != nil {
			return "", err
		}
		for _, w := range writing {
			found[w.String()] = true
		}
		if err := pause(ctx, pollPause); err != nil {
			return "", err
		}
	}
	changed, err := p.changes(ctx)
	if err != nil {
		return "", err
	}
	after, err := p.read(ctx, p.isCompared)
	if err != nil {
		return "", err
	}
	for session := range found {
		others = session
	}
	n := len(changed)
	for _, t := range p.tables {
		n += len(differences(t, before[t.Name], after[t.Name]))
	}
	if n > 0 && others == "" {
		others = fmt.Sprintf("somebody made %d changes", n)
	}
	return others, nil
}

func (p *play) isCompared(t table) bool { return !p.isDecoded(t) }

// quiet looks at what happened while the only run was frozen.
func (p *play) quiet(ctx context.Context) error {
	meanwhile, err := p.changes(ctx)
	if err != nil {
		return err
	}
	for _, c := range meanwhile {
		if p.settled && !p.firsts[c.transaction] {
			return othersWrite(c.tables[0] + " was changed while the only run was frozen")
		}
	}
	later, err := p.openTransactions(ctx)
	if err != nil {
		return err
	}
	maps.Copy(p.firsts, later)
	maps.DeleteFunc(p.firsts, func(xid uint32, _ bool) bool { return p.earlier[xid] })
	if err := p.find(ctx, p.Tables); err != nil { // it may have made partitions
		return err
	}
	p.base, err = p.read(ctx, func(table) bool { return true })
	return err
}

// settle waits until no session is at work on the tables.
func (d *database) settle(ctx context.Context) (bool, error) {
	quiet := time.Now()
	for end := quiet.Add(settleTime); time.Now().Before(end); {
		writing, err := d.writers(ctx)
		if err != nil {
			return false, err
		}
		for _, w := range writing {
			if !w.Idle {
				quiet = time.Now()
			}
		}
		if time.Since(quiet) >= quietTime {
			return true, nil
		}
		if err := pause(ctx, pollPause); err != nil {
			return false, err
		}
	}
	return false, nil
}
