<?php
// What PDO's users do. A line of input starts a run, its lines and a dot end it.
// way_test.go says what the lines mean.
declare(strict_types=1);

final class Run
{
    public function __construct(
        public string $port,
        public string $direct,
        public string $database,
        public string $security,
        public string $options,
        public string $set,
        public string $comment,
    ) {
    }

    public function fenced(): PDO
    {
        $db = $this->connect($this->port, $this->options);
        $db->exec($this->set);
        return $db;
    }

    public function unfenced(): PDO
    {
        return $this->connect($this->direct, '');
    }

    private function connect(string $port, string $options): PDO
    {
        $params = ['host' => getenv('PGHOST'), 'port' => $port, 'dbname' => $this->database, 'sslmode' => 'disable'];
        if ($options !== '') {
            $params['options'] = "'$options'";
        }
        if ($this->security !== 'plain') {
            $params['sslmode'] = 'verify-full';
            $params['sslrootcert'] = getenv('ROOT_CERT');
        }
        if ($this->security === 'binding') {
            $params['channel_binding'] = 'require';
        }
        $dsn = 'pgsql:' . implode(';', array_map(fn ($k, $v) => "$k=$v", array_keys($params), $params));
        return new PDO($dsn, getenv('PGUSER'), getenv('PGPASSWORD'), [PDO::ATTR_ERRMODE => PDO::ERRMODE_EXCEPTION]);
    }
}

final class Program
{
    private PDO $db;

    public function __construct(private Run $run)
    {
        $this->db = $run->fenced();
        $this->scenario();
    }

    private function report(string $kind, string $name, callable $act): void
    {
        try {
            $result = json_encode($act(), JSON_UNESCAPED_UNICODE);
        } catch (PDOException $e) {
            $result = 'error ' . self::state($e);
            if ($this->db->inTransaction()) {
                $this->db->rollBack();
            }
        }
        echo "$kind $name: $result\n";
    }

    /** The SQLSTATE; libpq's large objects and copies report errors by text alone. */
    private static function state(PDOException $e): string
    {
        return $e->errorInfo[0] === 'HY000' && str_contains($e->getMessage(), 'stale fencing token') ? 'WF001' : $e->errorInfo[0];
    }

    /** Runs a statement by a prepared one, the driver's options given. */
    private function rows(string $sql, array $values = [], array $options = []): mixed
    {
        $statement = $this->db->prepare($sql . $this->run->comment, $options);
        $statement->execute($values);
        return $statement->columnCount() > 0 ? $statement->fetchAll(PDO::FETCH_NUM) : $statement->rowCount();
    }

    private function exec(string $sql): mixed
    {
        return $this->db->exec($sql . $this->run->comment);
    }

    private function transaction(callable $body): mixed
    {
        $this->db->beginTransaction();
        $result = $body();
        $this->db->commit();
        return $result;
    }

    private function savepoints(): mixed
    {
        $this->rows("INSERT INTO t VALUES (?, 'tx')", [10]);
        $this->db->exec('SAVEPOINT s');
        $this->exec('DELETE FROM t');
        $this->db->exec('ROLLBACK TO SAVEPOINT s');
        return $this->rows('UPDATE t SET v = :v WHERE id = 10 RETURNING v', ['v' => 'Ü']);
    }

    private function prepared(): int
    {
        $statement = $this->db->prepare('INSERT INTO t VALUES (:id, :v)' . $this->run->comment);
        $n = 0;
        for ($i = 0; $i < 8; $i++) {
            $statement->bindValue('id', 20 + $i, PDO::PARAM_INT);
            $statement->bindValue('v', "p$i");
            $statement->execute();
            $n += $statement->rowCount();
        }
        return $n;
    }

    /** By a cursor, which can go back. */
    private function scrolled(): array
    {
        $statement = $this->db->prepare('SELECT generate_series(1, 100)' . $this->run->comment, [PDO::ATTR_CURSOR => PDO::CURSOR_SCROLL]);
        $statement->execute();
        $row = fn (int $how, int $offset = 0) => $statement->fetch(PDO::FETCH_NUM, $how, $offset)[0];
        return [$row(PDO::FETCH_ORI_NEXT), $row(PDO::FETCH_ORI_LAST), $row(PDO::FETCH_ORI_ABS, 42), $row(PDO::FETCH_ORI_PRIOR)];
    }

    private function largeObject(): string
    {
        $oid = $this->db->pgsqlLOBCreate();
        $stream = $this->db->pgsqlLOBOpen($oid, 'w+b');
        fwrite($stream, 'hello');
        rewind($stream);
        $text = fread($stream, 5);
        fclose($stream);
        $this->db->pgsqlLOBUnlink($oid);
        return $text;
    }

    private function blob(): mixed
    {
        $statement = $this->db->prepare("INSERT INTO t VALUES (41, encode(:v, 'hex')) RETURNING v" . $this->run->comment);
        $statement->bindValue('v', "a\0b\xff", PDO::PARAM_LOB);
        $statement->execute();
        return $statement->fetchColumn();
    }

    private function notified(): string
    {
        $this->db->exec('LISTEN news');
        $this->run->unfenced()->exec("NOTIFY news, 'hello'");
        $heard = $this->db->pgsqlGetNotify(PDO::FETCH_NUM, 30000);
        return "$heard[0] $heard[2]";
    }

    private function reset(): mixed
    {
        $this->db->exec('DISCARD ALL');
        $this->db->exec($this->run->set);
        return $this->rows("INSERT INTO t VALUES (?, 'behind the reset')", [60]);
    }

    private function scenario(): void
    {
        $emulated = [PDO::ATTR_EMULATE_PREPARES => true];
        $series = fn (int $from) => array_map(fn ($i) => "$i\trow", range($from, $from + 999));
        $this->report('R', 'select', fn () => $this->rows('SELECT 1 + ?::int, ?::text', [1, 'ü']));
        $this->report('R', 'emulated', fn () => $this->rows('SELECT 1 + ?, ?', [1, 'ü'], $emulated));
        $this->report('W', 'insert', fn () => $this->rows('INSERT INTO t VALUES (?, ?)', [1, 'a']));
        $this->report('W', 'emulated insert', fn () => $this->rows('INSERT INTO t VALUES (?, ?)', [2, 'b'], $emulated));
        $this->report('W', 'exec', fn () => $this->exec("INSERT INTO t VALUES (3, 'c')"));
        $this->report('W', 'returning', fn () => $this->rows('INSERT INTO t VALUES (4, ?) RETURNING id, v', ['d']));
        $this->report('W', 'function', fn () => $this->rows('SELECT write_one(?)', [5]));
        $this->report('W', 'several', fn () => $this->exec("INSERT INTO t VALUES (6, 'e'); INSERT INTO t VALUES (7, 'f')"));
        $this->report('W', 'transaction', fn () => $this->transaction($this->savepoints(...)));
        $this->report('W', 'prepared', fn () => $this->prepared());
        $this->report('W', 'prepared in a transaction', fn () => $this->transaction(fn () => $this->rows('UPDATE t SET v = ?', ['x'])));
        $this->report('V', 'copy in', fn () => $this->db->pgsqlCopyFromArray('u', $series(1)));
        $this->report('R', 'copy out', fn () => count($this->db->pgsqlCopyToArray('(SELECT generate_series(1, 3000))')));
        $this->report('E', 'copy fails', fn () => $this->db->pgsqlCopyFromArray('u', ["no number\tx"]));
        $this->report('W', 'large', fn () => $this->rows('INSERT INTO t VALUES (40, ?) RETURNING length(v)', [str_repeat('x', 1_000_000)]));
        $this->report('W', 'bytes', fn () => $this->blob());
        $this->report('V', 'large object', fn () => $this->transaction($this->largeObject(...)));
        $this->report('D', 'scrollable cursor', fn () => $this->transaction($this->scrolled(...)));
        $this->report('W', 'call', fn () => $this->rows('CALL commit_one(?)', [90000]));
        $this->report('W', 'vacuum', fn () => $this->exec('VACUUM t'));
        $this->report('W', 'concurrent index', fn () => $this->exec('CREATE INDEX CONCURRENTLY ON t(id)'));
        $this->report('E', 'syntax error', fn () => $this->rows('SELECT 1 SELEC 2'));
        $this->report('E', 'position', fn () => $this->rows('INSERT INTO t VALUES (9, nöpe)'));
        $this->report('E', 'duplicate', fn () => $this->rows('INSERT INTO t VALUES (?, 1), (?, 1)', [1, 1]));
        $this->report('R', 'division', fn () => $this->rows('SELECT 1 / ?::int', [0]));
        $this->report('R', 'notify', fn () => $this->notified());
        $this->report('W', 'own notify', fn () => $this->exec('NOTIFY own'));
        $this->report('W', 'serializable', fn () => $this->transaction(function () {
            $this->db->exec('SET TRANSACTION ISOLATION LEVEL SERIALIZABLE');
            return $this->exec("INSERT INTO t VALUES (50, 's')");
        }));
        $this->report('R', 'read only', fn () => $this->transaction(function () {
            $this->db->exec('SET TRANSACTION READ ONLY');
            return $this->rows('SELECT count(*) >= 0 FROM t');
        }));
        $this->report('W', 'reset', fn () => $this->reset());
        $this->report('R', 'alive', fn () => $this->rows("SELECT 'alive'"));
    }
}

while (($line = fgets(STDIN)) !== false) {
    $run = new Run(...explode("\t", rtrim($line, "\n")));
    new Program($run);
    echo ".\n";
}
