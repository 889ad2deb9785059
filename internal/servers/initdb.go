package servers

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
)

// makeCluster copies a cluster that an earlier call kept in CacheDir, if there is that folder:
// initdb takes seven times as long.
func (p *Postgres) makeCluster(ctx context.Context) error {
	program, err := os.Stat(p.command[0])
	if err != nil {
		return err
	}
	kept := filepath.Join(CacheDir(), fmt.Sprintf("initdb-%d-%x", p.Major, program.ModTime().UnixNano()))
	if _, err := os.Stat(kept); err == nil {
		if err := copyCluster(ctx, kept, p.data()); err != nil {
			return err
		}
		return p.newIdentity()
	}
	if err := p.tool(ctx, "initdb", "-D", p.data(), "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"); err != nil {
		return err
	}
	if made, err := os.MkdirTemp(CacheDir(), "initdb-"); err == nil {
		if copyCluster(ctx, p.data(), filepath.Join(made, "data")) == nil {
			_ = os.Rename(filepath.Join(made, "data"), kept) // another process may have been first
		}
		_ = os.RemoveAll(made)
	}
	return nil
}

// copyCluster copies a cluster that was shut down.
func copyCluster(ctx context.Context, from, to string) error {
	if out, err := exec.CommandContext(ctx, "cp", "-Rp", from, to).CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

// newIdentity gives a cluster that was shut down another system identifier: the first eight bytes
// of pg_control, behind whose fields is their CRC-32C, and bytes 24 to 31 of each segment of the WAL
// (ControlFileData, XLogLongPageHeaderData).
func (p *Postgres) newIdentity() error {
	identity := binary.NativeEndian.AppendUint64(nil, rand.Uint64()>>1)
	segments, err := filepath.Glob(filepath.Join(p.data(), "pg_wal", "0*"))
	for _, segment := range segments {
		err = errors.Join(err, overwrite(segment, identity, 24))
	}
	control, unread := os.ReadFile(p.File("global/pg_control"))
	if err = errors.Join(err, unread); err != nil {
		return err
	}
	sum := func(end int) uint32 { return crc32.Checksum(control[:end], crc32.MakeTable(crc32.Castagnoli)) }
	for end := len(identity); end+4 <= len(control); end += 4 {
		if sum(end) == binary.NativeEndian.Uint32(control[end:]) {
			copy(control, identity)
			binary.NativeEndian.PutUint32(control[end:], sum(end))
			return overwrite(p.File("global/pg_control"), control, 0)
		}
	}
	return errors.New("pg_control has no checksum")
}

// overwrite writes into a file that is there.
func overwrite(path string, text []byte, at int64) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(text, at)
	return errors.Join(err, f.Close())
}
