create table jobs (token bigint, note text);
create table cell (id int primary key, n int);
insert into cell values (1, 0), (2, 0), (3, 0);
create table victims (a int);
create table wide (a int);
create sequence counter;
create function writes(i int) returns int language sql volatile as $$ insert into public.jobs values (0, 'by a function'); select i $$;
create function folded(i int) returns int language plpgsql immutable as $$ begin return public.writes(i); end $$;
create function reads(i int) returns bigint language sql stable as $$ select count(*) from public.cell where id = i $$;
create function pure(i int) returns int language sql immutable as $$ select i + 1 $$;
create procedure proc() language sql as $$ insert into public.jobs values (0, 'by a procedure') $$;
create procedure committing() language plpgsql as $$ begin
  insert into public.jobs values (0, 'before'); commit; insert into public.jobs values (0, 'behind'); end $$;
create view clean as select id, pure(n) from cell;
create view dirty as select writes(id) from cell;
-- What doesn't look like a write.
create function calm(i int) returns int language plpgsql stable as $$ begin return public.writes(i); end $$;
create function plus(int, int) returns int language sql volatile as $$ select public.writes($1) + $2 $$;
create operator #|# (leftarg = int, rightarg = int, function = plus);
create function notes(text) returns boolean language sql volatile as $$ insert into public.jobs values (0, 'by a domain'); select true $$;
create domain noted as text check (notes(value));
create table later (a int);
create function at_the_end() returns trigger language plpgsql as $$ begin insert into public.jobs values (0, 'by a trigger'); return null; end $$;
create constraint trigger at_the_end after insert on later deferrable initially deferred for each row execute function at_the_end();
do $$ begin
  if not exists (select from pg_roles where rolname = 'app') then create role app login; end if;
end $$;
create function run(code text) returns void language plpgsql as $$ begin execute code; end $$;
grant all on schema public to app;
grant all on all tables in schema public to app;
grant all on all sequences in schema public to app;
