package servers

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// ZooKeeper is a running ZooKeeper server, alone or a member of an ensemble. Its
// data outlives Stop and Kill.
type ZooKeeper struct {
	process

	id       int
	peers    [2]int   // ports for the other members and for elections
	settings []string // lines of zoo.cfg
}

// ZooKeeperTick is the tickTime of the servers that are started here.
const ZooKeeperTick = 100 * time.Millisecond

// zookeeperJars is where Debian's libzookeeper-java and what it depends on are.
const zookeeperJars = "/usr/share/java"

// StartZooKeeper starts a server on a free loopback port. Settings are lines of
// zoo.cfg. It returns when the server answers, which takes a Java machine a
// second or two: share it among tests.
func StartZooKeeper(ctx context.Context, settings ...string) (*ZooKeeper, error) {
	members, err := StartZooKeeperEnsemble(ctx, 1, settings...)
	if err != nil {
		return nil, err
	}
	return members[0], nil
}

// StartZooKeeperEnsemble starts an ensemble of n members and returns when all of
// them answer.
func StartZooKeeperEnsemble(ctx context.Context, n int, settings ...string) ([]*ZooKeeper, error) {
	if _, err := os.Stat(filepath.Join(zookeeperJars, "zookeeper.jar")); err != nil {
		return nil, errors.New("no ZooKeeper found: run scripts/install-servers --test (Debian, Ubuntu), which installs libzookeeper-java")
	}
	var members []*ZooKeeper
	closeAll := func() {
		for _, member := range members {
			member.Close()
		}
	}
	for i := range n {
		p, err := newProcess("zookeeper")
		if err != nil {
			closeAll()
			return nil, err
		}
		z := &ZooKeeper{process: p, id: i + 1}
		members = append(members, z)
		for j := range z.peers {
			if z.peers[j], err = FreePort(); err != nil {
				closeAll()
				return nil, err
			}
		}
	}
	for _, z := range members {
		z.settings = append(ensembleSettings(members), settings...)
	}
	return members, startTogether(ctx, members)
}

func ensembleSettings(members []*ZooKeeper) []string {
	if len(members) == 1 {
		return nil
	}
	all := []string{"initLimit=100", "syncLimit=50"}
	for _, z := range members {
		all = append(all, fmt.Sprintf("server.%d=127.0.0.1:%d:%d", z.id, z.peers[0], z.peers[1]))
	}
	return all
}

// Start starts a server that was ended by Stop or Kill, with its data and on
// the same ports. A member of an ensemble is ready when there is a majority.
func (z *ZooKeeper) Start(ctx context.Context) error {
	if err := os.MkdirAll(z.data(), 0o700); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(z.data(), "myid"), fmt.Append(nil, z.id), 0o600); err != nil {
		return err
	}
	config := filepath.Join(z.dir, "zoo.cfg")
	lines := append([]string{
		"dataDir=" + z.data(), fmt.Sprint("clientPort=", z.Port), "clientPortAddress=127.0.0.1",
		fmt.Sprint("tickTime=", ZooKeeperTick.Milliseconds()), "minSessionTimeout=200", "maxSessionTimeout=120000",
		"maxClientCnxns=0", "admin.enableServer=false", "4lw.commands.whitelist=srvr", "preAllocSize=1024", "forceSync=no",
	}, z.settings...)
	if err := os.WriteFile(config, []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
		return err
	}
	var jars []string
	for _, name := range []string{
		"zookeeper", "zookeeper-jute", "slf4j-api", "slf4j-simple", "netty-common", "netty-buffer", "netty-transport", "netty-resolver",
		"netty-codec", "netty-handler", "netty-transport-native-epoll", "netty-transport-native-unix-common", "snappy-java", "metrics-core", "commons-io", "commons-cli",
	} {
		jars = append(jars, filepath.Join(zookeeperJars, name+".jar"))
	}
	java := exec.Command("java", "-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto",
		"-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-Dzookeeper.jmx.log4j.disable=true", "-Djava.net.preferIPv4Stack=true",
		"-cp", strings.Join(jars, ":"), "org.apache.zookeeper.server.quorum.QuorumPeerMain", config)
	return z.run(ctx, java, func(ctx context.Context) error {
		if z.Mode(ctx) == "" {
			return errors.New("it doesn't serve")
		}
		return nil
	})
}

// Mode asks the server for its present mode: standalone, leader or follower; "" if it
// doesn't serve.
func (z *ZooKeeper) Mode(ctx context.Context) string {
	conn, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "tcp", z.Addr())
	if err != nil {
		return ""
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(time.Second))
	if _, err := conn.Write([]byte("srvr")); err != nil {
		return ""
	}
	state, err := io.ReadAll(conn)
	_, mode, found := strings.Cut(string(state), "Mode: ")
	if err != nil || !found {
		return ""
	}
	mode, _, _ = strings.Cut(mode, "\n")
	return mode
}

// URL is the connection string of the server, as a lease store.
func (z *ZooKeeper) URL() string {
	return fmt.Sprintf("zookeeper://%s?tick=%v", z.Addr(), ZooKeeperTick)
}
