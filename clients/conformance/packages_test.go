package conformance

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

var packages = flag.String("packages", "", "run the clients from the packages in this `folder`, which scripts/package-clients writes")

// clients are the places where the tests find them: what git has, or with -packages what was
// installed.
var clients = struct{ python, ruby, java, jar, rust string }{
	python: "../python", ruby: "../ruby/lib", java: "../java/src/*/java/io/github/wirefence/*.java", rust: "../rust",
}

// installPackages installs the packages into a folder where nothing else is.
func installPackages(dir string) error {
	if *packages == "" {
		return nil
	}
	wheel, err := packageFile("*.whl")
	gem, err2 := packageFile("*.gem")
	jar, err3 := packageFile("wirefence-*[0-9].jar")
	if err := errors.Join(err, err2, err3); err != nil {
		return err
	}
	clients.python, clients.jar, clients.rust = filepath.Join(dir, "python"), jar, filepath.Join(dir, "rust")
	clients.java = "../java/src/test/java/io/github/wirefence/*.java"
	gems := filepath.Join(dir, "gems")
	clients.ruby = filepath.Join(gems, "gems", strings.TrimSuffix(filepath.Base(gem), ".gem"), "lib")
	return errors.Join(
		command(python, "-m", "pip", "--quiet", "install", "--no-index", "--no-deps", "--target", clients.python, wheel),
		// The distribution has what the gem depends on.
		command("gem", "install", "--local", "--ignore-dependencies", "--no-document", "--install-dir", gems, gem),
		unpack("*.crate", clients.rust))
}

func packageFile(pattern string) (string, error) {
	found, err := filepath.Glob(filepath.Join(*packages, pattern))
	if err == nil && len(found) != 1 {
		err = fmt.Errorf("%s has %d of %s: run scripts/package-clients", *packages, len(found), pattern)
	}
	if err != nil {
		return "", err
	}
	return found[0], nil
}

// unpack unpacks a package's only folder.
func unpack(pattern, dir string) error {
	file, err := packageFile(pattern)
	if err != nil {
		return err
	}
	return errors.Join(os.MkdirAll(dir, 0o755), command("tar", "-xzf", file, "-C", dir, "--strip-components=1"))
}

// addDriver adds what the package of the crate lacks: the driver, and the versions that
// scripts/install-servers has compiled.
func addDriver() error {
	return errors.Join(os.Mkdir(filepath.Join(clients.rust, "examples"), 0o755),
		copyFile(filepath.Join(clients.rust, "Cargo.lock"), "../rust/Cargo.lock"),
		copyFile(filepath.Join(clients.rust, "examples", "driver.rs"), "testdata/driver.rs"))
}
