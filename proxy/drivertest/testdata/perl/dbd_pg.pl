# What DBD::Pg's users do. A line of input starts a run, its lines and a dot end
# it. way_test.go says what the lines mean.
use strict;
use warnings;
use utf8;
use DBI qw(:sql_types);
use DBD::Pg qw(:async);

binmode STDOUT, ':encoding(UTF-8)';
$| = 1;

my ($dbh, $comment);
my $first; # error of an act, as the driver raised it: handles that go out of scope forget it

sub connect_to {
    my ($port, $run, $options) = @_;
    my %params = (host => $ENV{PGHOST}, port => $port, dbname => $run->{database});
    $params{options} = "'$options'" if $options;
    $params{sslmode} = $run->{security} eq 'plain' ? 'disable' : 'verify-full';
    $params{sslrootcert} = $ENV{ROOT_CERT} if $run->{security} ne 'plain';
    $params{channel_binding} = 'require' if $run->{security} eq 'binding';
    my $dsn = join ';', map { "$_=$params{$_}" } sort keys %params;
    return DBI->connect("dbi:Pg:$dsn", $ENV{PGUSER}, $ENV{PGPASSWORD},
        {RaiseError => 1, PrintError => 0, PrintWarn => 0, AutoCommit => 1, HandleError => \&raised});
}

sub raised {
    my ($text, $handle) = @_;
    my $state = $handle->state; # the next call on the handle forgets it
    my $position = $dbh->pg_error_field('statement_position');
    $first //= $state . ($position ? " at $position" : '');
    die "$text\n";
}

sub report {
    my ($kind, $name, $act) = @_;
    undef $first;
    my $result = eval { $act->() };
    if (my $error = $@) {
        $first //= 'WF001' if $error =~ /stale fencing token/; # pg_prepare_now dies by the error's text
        die $error unless defined $first;
        $result = "error $first";
        $dbh->rollback unless $dbh->{AutoCommit};
    }
    print "$kind $name: ", $result // 'undef', "\n";
}

sub rows {
    my ($sql, @values) = @_;
    my $statement = $dbh->prepare($sql . $comment);
    $statement->execute(@values);
    return $statement->{NUM_OF_FIELDS} ? join ' ', map { join ',', @$_ } @{$statement->fetchall_arrayref} : $statement->rows;
}

# transaction commits what a body does; report rolls it back.
sub transaction {
    my $body = shift;
    $dbh->begin_work;
    my $result = $body->();
    $dbh->commit;
    return $result;
}

sub savepoints {
    rows("INSERT INTO t VALUES (?, 'tx')", 10);
    $dbh->pg_savepoint('s');
    rows('DELETE FROM t');
    $dbh->pg_rollback_to('s');
    $dbh->pg_release('s');
    return rows('UPDATE t SET v = ? WHERE id = 10 RETURNING v', 'Ü');
}

sub prepared {
    my $statement = $dbh->prepare("INSERT INTO t VALUES (?, ?)$comment", {pg_server_prepare => 1, pg_prepare_now => 1});
    $statement->execute(20 + $_, 'p') for 0 .. 7;
    return 'done';
}

sub batch {
    my $statement = $dbh->prepare("INSERT INTO t VALUES (?, ?)$comment");
    my @status;
    return $statement->execute_array({ArrayTupleStatus => \@status}, [100 .. 150], 'batch');
}

sub copy_in {
    my @lines = @_;
    $dbh->do("COPY t FROM STDIN$comment");
    $dbh->pg_putcopydata($_) for @lines;
    return $dbh->pg_putcopyend;
}

sub copy_out {
    $dbh->do("COPY (SELECT generate_series(1, 3000)) TO STDOUT$comment");
    my ($row, $n) = ('', 0);
    $n++ while $dbh->pg_getcopydata($row) >= 0;
    return $n;
}

sub large_object {
    my $oid = rows('SELECT lo_creat(-1)'); # pg_lo_creat reports no error, only that there is no object
    my $fd = $dbh->pg_lo_open($oid, $dbh->{pg_INV_READ} | $dbh->{pg_INV_WRITE});
    my $text = '';
    $dbh->pg_lo_write($fd, 'hello', 5);
    $dbh->pg_lo_lseek($fd, 0, 0);
    $dbh->pg_lo_read($fd, $text, 5);
    $dbh->pg_lo_close($fd);
    $dbh->pg_lo_unlink($oid);
    return $text;
}

sub asynchronous {
    my $statement = $dbh->prepare("INSERT INTO t VALUES (?, 'async') RETURNING id$comment", {pg_async => PG_ASYNC});
    $statement->execute(60);
    $dbh->pg_result;
    return $statement->fetchrow_array;
}

sub cancel {
    my $other = shift;
    my $statement = $dbh->prepare("SELECT pg_sleep(60)$comment", {pg_async => PG_ASYNC});
    $statement->execute;
    my $sleeps = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND datname = current_database()";
    1 until $dbh->pg_ready || ($other->selectrow_array($sleeps))[0];
    return $dbh->pg_result if $dbh->pg_ready; # it was refused
    return $dbh->pg_cancel ? 'cancelled' : 'too late';
}

sub notified {
    my $other = shift;
    $dbh->do('LISTEN news');
    $other->do("NOTIFY news, 'hello'");
    my $heard;
    until ($heard = $dbh->pg_notifies) {
        my $ready = '';
        vec($ready, $dbh->{pg_socket}, 1) = 1;
        select($ready, undef, undef, 30) or die 'no notification';
    }
    return "$heard->[0] $heard->[2]";
}

sub scenario {
    my ($run, $other) = @_;
    report 'R', 'select', sub { rows('SELECT 1 + ?::int, ?::text', 1, 'ü') };
    report 'W', 'insert', sub { rows('INSERT INTO t VALUES (?, ?)', 1, 'a') };
    report 'W', 'do', sub { $dbh->do("INSERT INTO t VALUES (2, 'b')$comment") };
    report 'W', 'returning', sub { rows('INSERT INTO t VALUES (3, ?) RETURNING id, v', 'c') };
    report 'W', 'function', sub { rows('SELECT write_one(?)', 4) };
    report 'W', 'several', sub { $dbh->do("INSERT INTO t VALUES (5, 'd'); INSERT INTO t VALUES (6, 'e')$comment") };
    report 'W', 'transaction', sub { transaction(\&savepoints) };
    report 'W', 'prepared', \&prepared;
    report 'W', 'batch', \&batch;
    report 'W', 'copy in', sub { copy_in(map { "$_\tcopied\n" } 1000 .. 1999) };
    report 'E', 'copy fails', sub { copy_in("no number\tx\n") };
    report 'R', 'copy out', \&copy_out;
    report 'W', 'large', sub { rows('INSERT INTO t VALUES (40, ?) RETURNING length(v)', 'x' x 1_000_000) };
    report 'W', 'large object', sub { transaction(\&large_object) };
    report 'W', 'asynchronous', \&asynchronous;
    report 'R', 'cursor', sub {
        transaction(sub {
            $dbh->do('DECLARE c CURSOR FOR SELECT generate_series(1, 100)');
            return rows('FETCH 3 FROM c') . ' ' . rows('FETCH 2 FROM c');
        })
    };
    report 'W', 'call', sub { rows('CALL commit_one(?)', 90000) };
    report 'W', 'vacuum', sub { $dbh->do("VACUUM t$comment") };
    report 'W', 'concurrent index', sub { $dbh->do("CREATE INDEX CONCURRENTLY ON t(id)$comment") };
    report 'E', 'syntax error', sub { rows('SELECT 1 SELEC 2') };
    report 'E', 'position', sub { rows('INSERT INTO t VALUES (9, nöpe)') };
    report 'E', 'duplicate', sub { rows('INSERT INTO t VALUES (?, 1), (?, 1)', 1, 1) };
    report 'R', 'division', sub { rows('SELECT 1 / ?::int', 0) };
    report 'R', 'cancel', sub { cancel($other) };
    report 'R', 'notify', sub { notified($other) };
    report 'W', 'own notify', sub { $dbh->do("NOTIFY own$comment") };
    report 'W', 'serializable', sub {
        transaction(sub { $dbh->do('SET TRANSACTION ISOLATION LEVEL SERIALIZABLE'); rows("INSERT INTO t VALUES (50, 's')") })
    };
    report 'R', 'read only', sub {
        transaction(sub { $dbh->do('SET TRANSACTION READ ONLY'); rows('SELECT count(*) >= 0 FROM t') })
    };
    report 'W', 'reset', sub {
        $dbh->do('DISCARD ALL');
        $dbh->do($run->{set});
        return rows("INSERT INTO t VALUES (?, 'behind the reset')", 70);
    };
    report 'S', 'ping', sub { $dbh->ping };
    report 'R', 'alive', sub { rows("SELECT 'alive'") };
}

while (my $line = <STDIN>) {
    chomp $line;
    my %run;
    @run{qw(port direct database security options set comment)} = split /\t/, $line, -1;
    $comment = $run{comment};
    $dbh = connect_to($run{port}, \%run, $run{options});
    $dbh->do($run{set});
    my $other = connect_to($run{direct}, \%run, '');
    scenario(\%run, $other);
    $dbh->disconnect;
    $other->disconnect;
    print ".\n";
}
