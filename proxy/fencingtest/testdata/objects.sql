create table jobs (token bigint, note text);
create table cell (id int primary key, n int);
insert into cell values (1, 0), (2, 0), (3, 0);
create table victims (a int);
create table wide (a int);
create sequence counter;
create function writes(i int) returns int language sql volatile as $$ insert into public.jobs values (0, 'by a function'); select i $$;
create function reads(i int) returns bigint language sql stable as $$ select count(*) from public.cell where id = i $$;
create function pure(i int) returns int language sql immutable as $$ select i + 1 $$;
create procedure proc() language sql as $$ insert into public.jobs values (0, 'by a procedure') $$;
create procedure committing() language plpgsql as $$ begin
  insert into public.jobs values (0, 'before'); commit; insert into public.jobs values (0, 'behind'); end $$;
create view clean as select id, pure(n) from cell;
create view dirty as select writes(id) from cell;
do $$ begin
  if not exists (select from pg_roles where rolname = 'app') then create role app login; end if;
end $$;
grant all on all tables in schema public to app;
grant all on all sequences in schema public to app;
