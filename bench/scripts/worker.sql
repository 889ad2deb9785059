CREATE ROLE worker LOGIN;
GRANT INSERT ON entries TO worker;
